"""Waits for a condition, with a timeout that scales with the speed of the machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: Wall time of `_work` on an idle core of the machine that the figures of the README were measured on.
REFERENCE_SECONDS = 0.025
#: Default timeout on that machine. A test that passes never waits for it, so it is generous.
TIMEOUT_SECONDS = 60.0
#: Beyond this load a test fails rather than waits on.
MAX_LOAD = 10.0


@cache
def slowness() -> float:
    """Returns how many times slower an idle core of this machine is than the reference, at least 1."""
    return max(1.0, min(_work() for _ in range(3)) / REFERENCE_SECONDS)


def load() -> float:
    """Returns how many processes share a core at the moment, between 1 and `MAX_LOAD`."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)), MAX_LOAD)


def scaled(seconds: float) -> float:
    """Returns a timeout for this machine and its load, from one for the idle reference machine."""
    return seconds * slowness() * load()


def until(
    condition: Callable[[], T],
    what: object | Callable[[], object] = "the condition",
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    pause_seconds: float = 0.02,
) -> T:
    """Polls until a condition is true, and returns its value.

    Args:
        condition: Called once per poll.
        what: Describes the condition in the error message; where it is a function, it is called for the message.
        timeout_seconds: Timeout on the reference machine.
        pause_seconds: Pause between two polls.

    Raises:
        AssertionError: The condition was not met within the timeout.
    """
    limit = scaled(timeout_seconds)
    deadline = time.monotonic() + limit
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Not met within {limit:.0f} s: {what() if callable(what) else what}.")
        time.sleep(pause_seconds)
    return found


def until_job(child: subprocess.Popen[Any], condition: Callable[[], T]) -> T:
    """Polls, often, until a condition is true, while a process that brings it about is alive.

    Raises:
        AssertionError: The process ended first, or the condition was not met within the timeout.
    """

    def met() -> T:
        assert child.poll() is None, "the job ended too early"
        return condition()

    return until(met, pause_seconds=0.002)


def has_ended(pid: int) -> bool:
    """Tells whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _work() -> float:
    begun, data = time.perf_counter(), bytes(4096)
    for _ in range(4000):
        data = hashlib.sha256(data).digest() * 128
    return time.perf_counter() - begun
