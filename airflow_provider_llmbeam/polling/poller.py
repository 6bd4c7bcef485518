"""The poller protocol, the values that a poll returns, the log it writes to, and the loop in the worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

from airflow_provider_llmbeam.exceptions import LLMBeamError, error_class


class TaskLog(Protocol):
    """A logger: `logging.Logger`, or Airflow's own."""

    def log(self, level: int, event: str, *args: Any) -> Any:
        """Writes a line at a level of `logging`."""

    def info(self, event: str, *args: Any) -> Any:
        """Writes a line of information."""

    def warning(self, event: str, *args: Any) -> Any:
        """Writes a warning."""

    def error(self, event: str, *args: Any) -> Any:
        """Writes an error."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Result of a poll after which the wait goes on.

    Attributes:
        seconds: Time until the next poll.
        message: Sentence for the log; `None` if there is nothing new.
    """

    seconds: float
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """Result of a poll that ends the wait: the task succeeds or raises.

    Each poller has a subclass whose fields are plain JSON, as they travel as the event of a trigger.

    Attributes:
        message: Sentence for the task log or for the error; empty if there is nothing to report.
        error_type: Name of a class in `exceptions`; `None` if the task succeeds.
    """

    #: Class of the error if `error_type` is unknown, e.g. because another version of this package wrote the event.
    default_error: ClassVar[type[LLMBeamError]] = LLMBeamError

    message: str = ""
    error_type: str | None = None

    def to_event(self) -> dict[str, Any]:
        """Returns the fields as plain JSON, for the event of a trigger."""
        return asdict(self)

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> Self:
        """Reads what `to_event` returned."""
        return cls(**event)

    @property
    def error(self) -> LLMBeamError | None:
        """The error that the task raises; `None` if it succeeds."""
        return None if self.error_type is None else error_class(self.error_type, self.default_error)(self.message)


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
