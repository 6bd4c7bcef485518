"""What tests ask about processes that they start."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from waiting import until

T = TypeVar("T")


def until_job(child: subprocess.Popen[Any], condition: Callable[[], T]) -> T:
    """Polls, often, until a condition is true, while a process that brings it about is alive.

    Raises:
        AssertionError: The process ended first.
        TimeoutError: The condition was not met within the timeout.
    """

    def met() -> T:
        assert child.poll() is None, "the job ended too early"
        return condition()

    return until(met, pause_seconds=0.002)


def has_ended(pid: int) -> bool:
    """Returns whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
