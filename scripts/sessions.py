"""Programs that end, with all that they start, when this process ends in any way, also by kill -9.

Each program leads a session, and writes its id to a pipe before it begins. A watcher reads the pipe, whose other
end this process alone holds, and kills the sessions when it closes. Airflow's components have process groups of
their own, and stay in the session.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import psutil

#: Writes the id of the shell to standard input, the pipe, and becomes the program, which has neither.
_ANNOUNCE = 'echo $$ >&0; exec "$@" </dev/null'


class Leader(subprocess.Popen[bytes]):
    """The leader of a session, a program that `start` has started."""

    def __init__(self, command: Sequence[Any], **options: Any) -> None:
        super().__init__(command, **options)
        self._began_at = psutil.Process(self.pid).create_time()

    @property
    def has_its_id(self) -> bool:
        """Whether its id is still that of its session and process group."""
        return _is_same(self.pid, self._began_at)


def start(command: Sequence[Any], **options: Any) -> Leader:
    """Starts a program as the leader of a session, without standard input.

    Args:
        command: The program and its arguments.
        options: Arguments of `subprocess.Popen`.
    """
    announced = ["sh", "-c", _ANNOUNCE, "sh", *command]
    return Leader(announced, stdin=_watched_pipe(), start_new_session=True, **options)


def kill(leaders: Iterable[Leader]) -> None:
    """Kills all processes of the sessions of some leaders, with kill -9, until none is left."""
    _kill({leader.pid for leader in leaders if leader.has_its_id})


def _kill(sessions: Collection[int]) -> None:
    while found := [process for process in psutil.process_iter() if _is_alive_in(process, sessions)]:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)


def _is_alive_in(process: psutil.Process, sessions: Collection[int]) -> bool:
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        return os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE
    return False


@cache
def _watched_pipe() -> int:
    """Starts the watcher; returns the end of its pipe that this process holds."""
    read, write = os.pipe()
    files: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, read, 0)]
    files += [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_WRONLY, 0) for each in (1, 2)]
    # No `Popen`, which warns at the exit of the interpreter that it still runs. In a session of its own neither
    # Ctrl-C nor a signal to this process group reaches it.
    os.posix_spawn(sys.executable, [sys.executable, "-P", __file__], os.environ, file_actions=files, setsid=True)
    os.close(read)
    return write


def _watch(lines: Iterable[str]) -> None:
    began = {}
    for line in lines:
        with suppress(psutil.NoSuchProcess):
            began[int(line)] = psutil.Process(int(line)).create_time()
    _kill({session for session, at in began.items() if _is_same(session, at)})


def _is_same(session: int, began_at: float) -> bool:
    """Returns whether an id is that of the same session: it may be another one's after the end of all its own."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(session).create_time() == began_at)
    return True  # its leader has ended, and the id is free only when the others have


if __name__ == "__main__":
    _watch(sys.stdin)
