"""The end of a process with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

#: Source: linux/prctl.h.
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ends this process as soon as its parent has ended, also after a kill -9 of the parent.

    On Linux the kernel sends a SIGKILL, which needs no cooperation: a thread does not run while a function in C
    holds the interpreter lock. The parent is the thread that started this process (prctl(2), PR_SET_PDEATHSIG).

    In addition a thread reads standard input, a pipe whose other end the parent holds: for other systems, for a
    parent that ended before this call, and for one with a process in between.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_exit_at_end_of_input, name="parent-monitor", daemon=True).start()


def _exit_at_end_of_input() -> None:
    # Not through sys.stdin: a thread that holds its lock aborts the exit of the interpreter.
    while os.read(0, 4096):
        pass
    os._exit(1)
