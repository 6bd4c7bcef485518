"""Looking at something until it is over: what one look says, and the loop of a worker that waits itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after `seconds`; `words` are for the log."""

    seconds: float
    words: str | None = None


class PollResult(Protocol):
    """Waiting is over. A class of its own for each thing that is waited for."""

    def to_event(self) -> dict[str, Any]:
        """As plain JSON, for the event of a trigger; the class has a `from_event` that reads it."""


EndT = TypeVar("EndT", bound=PollResult)
SeenT = TypeVar("SeenT", bound=PollResult, covariant=True)


class Poller(Protocol[SeenT]):
    """What looks at one thing."""

    def look(self) -> Wait | SeenT:
        """Looks once, and does what follows. Blocks, in the thread that calls."""


def wait(watch: Poller[EndT], sleep: Callable[[float], None] = time.sleep) -> EndT:
    """Waits in this thread. `triggers.look` does the same between `asyncio.sleep`s."""
    while isinstance(seen := watch.look(), Wait):
        sleep(seen.seconds)
    return seen
