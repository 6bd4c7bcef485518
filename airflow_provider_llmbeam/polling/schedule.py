"""Looking again and again until something is so, a time is over, or it cannot be: for sensors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from airflow_provider_llmbeam import exceptions
from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.polling.poller import Poller, PollResult, Wait
from airflow_provider_llmbeam.polling.task_log import TaskLog

#: Between two looks, whatever was asked for: a look may cost something.
MIN_SECONDS = 1.0
#: The power of a long row of looks is more than a float holds.
_MAX_DOUBLINGS = 30


def wait_seconds(
    look: int, poke_interval_seconds: float, *, is_exponential: bool = False, max_wait_seconds: float | None = None
) -> float:
    """How long to wait after a look.

    Args:
        look: Which one it was; the first is 1.
        poke_interval_seconds: After the first look, and after each where the wait does not grow.
        is_exponential: Whether each wait is twice as long as the one before.
        max_wait_seconds: The longest wait.
    """
    doublings = min(max(look - 1, 0), _MAX_DOUBLINGS) if is_exponential else 0
    seconds = poke_interval_seconds * 2.0**doublings
    return max(MIN_SECONDS, seconds if max_wait_seconds is None else min(seconds, max_wait_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSchedule:
    """How long and how often somebody looks; plain enough to travel in the arguments of a trigger.

    Attributes:
        started_at: When the first look was, in seconds of the Unix epoch.
        timeout_seconds: From then on; `None`: somebody else sees to that.
        poke_interval_seconds: Between two looks.
        is_exponential: Whether each wait is twice as long as the one before.
        max_wait_seconds: The longest wait.
        looks: Those of others before.
    """

    started_at: float
    timeout_seconds: float | None
    poke_interval_seconds: float = 60.0
    is_exponential: bool = False
    max_wait_seconds: float | None = None
    looks: int = 0

    def left_seconds(self, now: float) -> float:
        """Until looking ends; `now` is in seconds of the Unix epoch."""
        return float("inf") if self.timeout_seconds is None else self.started_at + self.timeout_seconds - now

    def wait_seconds(self, look: int, now: float) -> float:
        """How long to wait after a look: there is a last one when the time is over."""
        seconds = wait_seconds(
            look,
            self.poke_interval_seconds,
            is_exponential=self.is_exponential,
            max_wait_seconds=self.max_wait_seconds,
        )
        return min(seconds, max(0.0, self.left_seconds(now)))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Reads what `to_dict` wrote."""
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorResult:
    """The end of looking; plain enough to travel in the event of a trigger.

    Attributes:
        outcome: `met`: it is so; `timed_out`: not in time; `refused`: it cannot be, however long one waits.
        message: For people, where it is not met.
        looks: How many there were.
        waited_seconds: From the first of them.
        event: What the end of the watch made of itself, where it is met.
        error_type: Class of `exceptions`, where it was refused.
    """

    outcome: Literal["met", "timed_out", "refused"]
    message: str = ""
    looks: int
    waited_seconds: float
    event: dict[str, Any] | None = None
    error_type: str | None = None

    def to_event(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> Self:
        """Reads what `to_event` wrote."""
        return cls(**event)

    @property
    def error(self) -> LLMBeamError | None:
        """What was raised where it was refused."""
        if self.error_type is None:
            return None
        found = getattr(exceptions, self.error_type, JobSpecError)
        is_ours = isinstance(found, type) and issubclass(found, LLMBeamError)
        return found(self.message) if is_ours else JobSpecError(self.message)


class ScheduledPoller:
    """Looks through another watch, as often and as long as patience has it. Blocks, in the thread that calls.

    What the other watch returns as a `Wait` is not so yet: its words go to the log and to the message of the end,
    and its seconds are the least until the next look. Its end is that it is so. An `LLMBeamError` that it raises
    is not so yet either where a retry may help, else the end.

    Args:
        watch: Looks.
        patience: How long and how often.
        log: Receives the words.
        now: Seconds of the Unix epoch.
    """

    def __init__(
        self,
        watch: Poller[PollResult],
        patience: PollSchedule,
        *,
        log: TaskLog,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._watch = watch
        self._patience = patience
        self._log = log
        self._now = now
        self._looks = patience.looks

    @property
    def looks(self) -> int:
        """How many there were, those of others included."""
        return self._looks

    def look(self) -> Wait | SensorResult:
        """Looks once."""
        self._looks += 1
        try:
            seen = self._watch.look()
        except LLMBeamError as error:
            if not error.retryable:
                return self._end("refused", str(error), error_type=type(error).__name__)
            seen = Wait(0.0, str(error))
        if not isinstance(seen, Wait):
            return self._end("met", event=seen.to_event())
        if seen.words:
            self._log.log(logging.INFO, "%s", seen.words)
        now = self._now()
        left = self._patience.left_seconds(now)
        if left <= 0:
            times = "once" if self._looks == 1 else f"{self._looks} times"
            why = f"Looked {times} within {self._patience.timeout_seconds:g} s (`timeout`). {seen.words or ''}"
            return self._end("timed_out", why.strip())
        return Wait(min(max(seen.seconds, self._patience.wait_seconds(self._looks, now)), left), seen.words)

    def _end(
        self,
        outcome: Literal["met", "timed_out", "refused"],
        message: str = "",
        *,
        event: dict[str, Any] | None = None,
        error_type: str | None = None,
    ) -> SensorResult:
        return SensorResult(
            outcome=outcome,
            message=message,
            looks=self._looks,
            waited_seconds=round(max(0.0, self._now() - self._patience.started_at), 3),
            event=event,
            error_type=error_type,
        )
