"""The timeout of requests does what `asyncio.timeout` does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.timeout import Timeout
from tests.hostile import examples
from tests.unit.engine.conftest import run_in_no_time

TIMEOUT_SECONDS = 10.0
Limit = Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]
#: When a request begins, how long it takes, and when somebody else cancels it, all in seconds.
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 4, 9]),
        st.sampled_from([0, 3, 9, 11, 30]),
        st.sampled_from([None, 0, 2, 5, 9, 10, 14, 25]),
    ),
    min_size=1,
    max_size=8,
)


async def request(limit: Limit, begins: float, takes: float) -> tuple[str, float, int]:
    """Returns how a request ends, when, and the cancellations that are left to its task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    end = "answered"
    try:
        await asyncio.sleep(begins)
        for _ in range(2):  # a task sends one request after the other
            async with AsyncExitStack() as stack:
                entered = limit()
                if isinstance(entered, AbstractContextManager):
                    stack.enter_context(entered)
                else:
                    await stack.enter_async_context(entered)
                await asyncio.sleep(takes)
    except (TimeoutError, asyncio.CancelledError) as error:
        end = type(error).__name__
    return end, round(loop.time(), 3), task.cancelling()


async def ends(limit: Limit, requests: list[tuple[float, float, float | None]]) -> list[tuple[str, float, int]]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    tasks = [asyncio.create_task(request(limit, begins, takes)) for begins, takes, _ in requests]
    for task, (_, _, cancelled) in zip(tasks, requests, strict=True):
        if cancelled is not None:
            loop.call_later(cancelled, task.cancel)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    return [one if isinstance(one, BaseException) else (one[0], one[1] - began, one[2]) for one in done]  # type: ignore[misc]


@given(REQUESTS)
@examples(3)
def test_each_request_ends_as_with_a_timer_of_its_own(requests):
    shared = Timeout(TIMEOUT_SECONDS)
    found = run_in_no_time(ends(lambda: shared, requests))
    expected = run_in_no_time(ends(lambda: asyncio.timeout(TIMEOUT_SECONDS), requests))
    assert list(map(repr, found)) == list(map(repr, expected))


def test_an_error_of_the_request_itself_is_not_a_timeout(run) -> None:
    async def main() -> None:
        with Timeout(1.0):
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        run(main())


def test_a_request_that_does_not_end_when_it_is_cancelled_keeps_its_own_error(run) -> None:
    async def main() -> None:
        with Timeout(1.0):
            try:
                await asyncio.sleep(5.0)
            except asyncio.CancelledError:
                raise OSError("connection reset") from None

    with pytest.raises(OSError, match="connection reset"):
        run(main())


def test_a_timeout_works_on_another_loop(run) -> None:
    timeout = Timeout(1.0)

    async def main() -> None:
        with timeout:
            await asyncio.sleep(5.0)

    for _ in range(2):
        with pytest.raises(TimeoutError):
            run(main())


def test_any_number_of_requests_needs_one_timer(run, monkeypatch) -> None:
    timeout, timers = Timeout(10.0), []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at
        monkeypatch.setattr(loop, "call_at", lambda when, *rest: timers.append(when) or call_at(when, *rest))
        for _ in range(1000):
            with timeout:
                pass

    run(main())
    assert len(timers) == 1
