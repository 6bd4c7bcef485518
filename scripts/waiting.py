"""Waiting for a condition, with timeouts that scale with the speed and the load of this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

T = TypeVar("T")

#: Iterations of the speed measurement, and their time on the reference machine, in seconds.
LOOP_ITERATIONS = 400_000
REFERENCE_SECONDS = 0.025
#: Largest factor: beyond it a wait fails rather than goes on for hours.
MAX_FACTOR = 5.0


def slowdown() -> float:
    """Returns how many times slower an idle core is than on the reference machine, measured once; at least 1.0."""
    return max(1.0, loop_seconds() / REFERENCE_SECONDS)


def load() -> float:
    """Returns how many processes share a core at the moment; at least 1.0."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def scaled(seconds: float) -> float:
    """Returns a timeout for this machine and its load, in seconds, from one for the idle reference machine."""
    return seconds * min(slowdown() * load(), MAX_FACTOR)


def until(
    condition: Callable[[], T],
    what: object | Callable[[], object] = "the condition",
    timeout_seconds: float = 150.0,
    pause_seconds: float = 0.05,
) -> T:
    """Waits until a condition is met; returns its value.

    Args:
        condition: Function that is called repeatedly until it returns a true value.
        what: Description of the condition for the error; a function is called only after the timeout.
        timeout_seconds: Timeout on the reference machine, in seconds; scaled to this one, and to its load, which
            may grow during the wait.
        pause_seconds: Interval between two calls, in seconds.

    Raises:
        TimeoutError: The condition was not met in time.
    """
    begun = time.monotonic()
    while not (value := condition()):
        if (waited := time.monotonic() - begun) > scaled(timeout_seconds):
            raise TimeoutError(f"Not within {waited:.0f} s: {what() if callable(what) else what}")
        time.sleep(pause_seconds)
    return value


@cache
def loop_seconds() -> float:
    """Returns the shortest of three times that an idle core takes for `LOOP_ITERATIONS`, measured once."""
    durations = []
    for _ in range(3):
        begun = time.perf_counter()
        sum(number * number % 7 for number in range(LOOP_ITERATIONS))
        durations.append(time.perf_counter() - begun)
    return min(durations)
