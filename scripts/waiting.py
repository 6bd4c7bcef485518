"""Waiting for a condition, with timeouts that scale with the measured speed of this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

T = TypeVar("T")

#: Iterations of the loop that measures the speed, and their time on the machine of the README's figures.
LOOP_ITERATIONS = 400_000
REFERENCE_SECONDS = 0.025
#: A machine that is slower than this is taken to be busy for a moment only.
MAX_SLOWDOWN = 8.0


@cache
def slowdown() -> float:
    """Returns how many times slower than the reference machine this one is, measured once; 1.0 at least.

    It is measured as elapsed time, so that a busy machine is a slow one.
    """
    found = statistics.median(_loop_seconds() for _ in range(5)) / REFERENCE_SECONDS
    return min(max(1.0, found), MAX_SLOWDOWN)


def scaled(seconds: float) -> float:
    """Returns a timeout of the reference machine as this machine needs it, in seconds."""
    return seconds * slowdown()


def until(
    condition: Callable[[], T],
    what: str | Callable[[], str],
    timeout_seconds: float = 150.0,
    pause_seconds: float = 0.3,
) -> T:
    """Waits until a condition is met; returns its value.

    Args:
        condition: Called again and again until what it returns is true.
        what: Describes the condition for the error; a function is called only when the time is over.
        timeout_seconds: On the reference machine; scaled to this one.
        pause_seconds: Interval between two calls.

    Raises:
        TimeoutError: The condition was not met in time.
    """
    timeout = scaled(timeout_seconds)
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            described = what if isinstance(what, str) else what()
            raise TimeoutError(f"Not within {timeout:.0f} s: {described}")
        time.sleep(pause_seconds)
    return value


def _loop_seconds() -> float:
    begun = time.perf_counter()
    sum(number * number % 7 for number in range(LOOP_ITERATIONS))
    return time.perf_counter() - begun
