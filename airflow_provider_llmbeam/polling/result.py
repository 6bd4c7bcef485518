"""Poll results: the values that end a wait, and travel as the event of a trigger."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from airflow_provider_llmbeam.exceptions import LLMBeamError, error_class


@dataclass(frozen=True, slots=True)
class PollResult:
    """Result of a poll that ends the wait. Each poller has a subclass whose fields are plain JSON."""

    def to_event(self) -> dict[str, Any]:
        """Returns the fields as plain JSON, for the event of a trigger."""
        return asdict(self)

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> Self:
        """Reads what `to_event` returned."""
        return cls(**event)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(PollResult):
    """Poll result that decides whether the task succeeds or raises.

    Attributes:
        message: Sentence for the task log or for the error; empty if there is nothing to report.
        error_type: Name of a class in `exceptions`; `None` if the task succeeds.
    """

    #: Class of the error if `error_type` is unknown, e.g. because another version of this package wrote the event.
    default_error: ClassVar[type[LLMBeamError]] = LLMBeamError

    message: str = ""
    error_type: str | None = None

    @property
    def error(self) -> LLMBeamError | None:
        """The error that the task raises; `None` if it succeeds."""
        return None if self.error_type is None else error_class(self.error_type, self.default_error)(self.message)
