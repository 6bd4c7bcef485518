"""The poller protocol, and the loop that polls in the worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from airflow_provider_llmbeam.polling.result import PollResult


@dataclass(frozen=True, slots=True)
class Wait:
    """Result of a poll after which the wait goes on.

    Attributes:
        seconds: Time until the next poll.
        message: Sentence for the log; `None` if there is nothing new.
    """

    seconds: float
    message: str | None = None


ResultT = TypeVar("ResultT", bound=PollResult)
ResultT_co = TypeVar("ResultT_co", bound=PollResult, covariant=True)


class Poller(Protocol[ResultT_co]):
    """Polls one thing, e.g. a job, an endpoint or a quota."""

    def poll(self) -> Wait | ResultT_co:
        """Polls once, and does what the state requires. Blocks the calling thread."""


def poll_until_result(poller: Poller[ResultT], sleep: Callable[[float], None] = time.sleep) -> ResultT:
    """Polls in this thread until there is a result. `triggers.base` does the same with `asyncio.sleep`."""
    while isinstance(result := poller.poll(), Wait):
        sleep(result.seconds)
    return result
