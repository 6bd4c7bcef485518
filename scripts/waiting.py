"""Waiting for a condition, with timeouts that scale with the measured speed of this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

T = TypeVar("T")

#: Iterations of the speed measurement, and their time on the machine of the README's figures, in seconds.
LOOP_ITERATIONS = 400_000
REFERENCE_SECONDS = 0.025
#: Largest slowdown that is applied; a slower machine is assumed to be busy only temporarily.
MAX_SLOWDOWN = 8.0


@cache
def slowdown() -> float:
    """Returns the slowdown of this machine relative to the reference machine, measured once; at least 1.0.

    It is measured in elapsed time, so a busy machine counts as slow.
    """
    found = statistics.median(_loop_seconds() for _ in range(5)) / REFERENCE_SECONDS
    return min(max(1.0, found), MAX_SLOWDOWN)


def scaled(seconds: float) -> float:
    """Returns a timeout of the reference machine scaled to this machine, in seconds."""
    return seconds * slowdown()


def until(
    condition: Callable[[], T],
    what: str | Callable[[], str],
    timeout_seconds: float = 150.0,
    pause_seconds: float = 0.3,
) -> T:
    """Waits until a condition is met; returns its value.

    Args:
        condition: Function that is called repeatedly until it returns a true value.
        what: Description of the condition for the error; a function is called only after the timeout.
        timeout_seconds: Timeout on the reference machine, in seconds; scaled to this one.
        pause_seconds: Interval between two calls, in seconds.

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
