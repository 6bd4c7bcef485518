"""Ends this process with the one that holds the other end of its standard input, also when that is killed with -9.

Python's own libraries only: it is run by its path as well, `lifeline.py COMMAND…`, around a command that
knows nothing of this.
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
    """Watch standard input from a thread; at its end kill the process group of this process.

    Args:
        on_line: Is given each line that comes.
        on_end: Is called before the end, whatever it raises.
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
    """Run a command in the process group of this process; returns its exit status."""
    hold()
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
