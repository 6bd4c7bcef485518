from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.window import sliding_window


class Line:
    """Fake sender of items, which are pairs of an index and a duration in seconds."""

    def __init__(self) -> None:
        self.started: list[tuple[float, int]] = []
        self.in_flight = 0
        self.peak = 0

    async def send(self, item: tuple[int, float]) -> None:
        index, seconds = item
        self.started.append((asyncio.get_running_loop().time(), index))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(seconds)
        self.in_flight -= 1


@given(durations=st.lists(st.sampled_from([0.0, 1.0, 2.5, 10.0]), max_size=30), window=st.integers(1, 8))
@settings(deadline=None)
def test_items_are_sent_once_in_order_and_within_the_window(
    run: Callable[..., Any], durations: list[float], window: int
) -> None:
    line = Line()
    run(sliding_window(enumerate(durations), line.send, window))
    assert [index for _, index in line.started] == list(range(len(durations)))
    assert line.peak <= window
    assert line.in_flight == 0


def test_the_window_is_used_in_full(run: Callable[..., Any]) -> None:
    line = Line()
    run(sliding_window(enumerate([1.0] * 20), line.send, 5))
    assert line.peak == 5


def test_an_item_that_ends_frees_its_place_at_once(run: Callable[..., Any]) -> None:
    line = Line()
    run(sliding_window(enumerate([100.0, 1.0, 1.0, 1.0]), line.send, 2))
    start = line.started[0][0]
    assert [at - start for at, _ in line.started] == pytest.approx([0, 0, 1, 2])


def test_items_are_taken_only_when_there_is_room(run: Callable[..., Any]) -> None:
    taken: list[int] = []

    def items():
        for index in range(10):
            taken.append(index)
            yield index, 1.0

    async def stop_early() -> None:
        task = asyncio.ensure_future(sliding_window(items(), Line().send, 3))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(stop_early())
    assert taken == [0, 1, 2]
