from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: it moves the clock to where the wait would have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        assert events or timeout is not None, "Everything waits, and nothing will ever wake it."
        if not events and timeout:
            self.now += timeout
        return events


class _JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_in_no_time(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        return runner.run(main)


@pytest.fixture(scope="session")
def run() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Runs a coroutine on a loop whose clock jumps: an hour of `asyncio.sleep` takes no time."""
    # The same waits in every run: in 1 % of the outages of a minute, one of 1,000 rows has used up its attempts.
    random.seed(0)
    return run_in_no_time
