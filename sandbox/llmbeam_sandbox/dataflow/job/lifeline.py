"""Ends this process with its parent, also after a SIGKILL: standard input, a pipe from the parent, closes then.

It imports the standard library only: it is also run by its path, `lifeline.py COMMAND…`, around a command that
does not read standard input itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

_STDIN = 0


def hold(on_line: Callable[[str], None] | None = None, on_end: Callable[[], None] | None = None) -> None:
    """Reads standard input in a thread, and kills the process group of this process at its end.

    Args:
        on_line: Called with each line.
        on_end: Called before the end; its exceptions are ignored.
    """
    threading.Thread(target=_watch, args=(on_line, on_end), name="lifeline", daemon=True).start()


def _watch(on_line: Callable[[str], None] | None, on_end: Callable[[], None] | None) -> None:
    rest = b""
    while data := os.read(_STDIN, 4096):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if on_line is not None:
                on_line(line.decode())
    if on_end is not None:
        with contextlib.suppress(Exception):
            on_end()
    os.killpg(0, signal.SIGKILL)


def main(command: Sequence[str]) -> int:
    """Runs a command in the process group of this process, and returns its exit status."""
    hold()
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
