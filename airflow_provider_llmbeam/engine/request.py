"""Requests of a batch: their prompts, their history and their failures."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.bill import NOTHING, Bill
from airflow_provider_llmbeam.engine.outcome import REFUSED, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError

#: Returns the prompt that follows an outcome of a batch, by the position of its first prompt; `None` for no more.
NextTurn = Callable[[int, Outcome], Prompt | None]


class InvalidAnswer(Exception):  # noqa: N818 - not an error yet: the prompt is sent again
    """The answer of a single prompt is invalid and can be repaired."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


class Observer(Protocol):
    """Receives the events of an engine, on its event loop: implementations must be quick and thread-safe."""

    def sent(self) -> None:
        """A request was sent."""

    def rejected(self, hold_seconds: float) -> None:
        """A 429 was received and all requests are held."""

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """A prompt has its outcome."""


class Record(Observer, Protocol):
    """Stores the outcomes of a batch, so that they survive the process."""

    @property
    def unstored(self) -> int:
        """Number of outcomes that are lost if the process is killed now."""
        ...

    @property
    def max_unstored_seconds(self) -> float:
        """Longest time for which an outcome may wait for others, to be stored with them."""
        ...

    def store(self, *, is_last: bool = False) -> Future[None] | None:
        """Stores all outcomes so far, or begins to do so.

        Args:
            is_last: Whether no further outcome follows.

        Returns:
            The end of what was begun; `None` if nothing was.

        Raises:
            Exception: Error of the filesystem.
        """
        ...


@dataclass(slots=True, eq=False)
class Batch:
    """What requests of one batch share: observers, their record among them, and the first error of an observer."""

    observers: Sequence[Observer]
    record: Record | None = None
    error: Exception | None = None

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """Tells all observers the outcome of a prompt."""
        for observer in self.observers:
            try:
                observer.finished(prompt, outcome)
            except Exception as error:  # noqa: BLE001 - raised once the requests in flight are recorded
                self.error = self.error or error


@dataclass(slots=True)
class Request:
    """A request and the prompts it contains."""

    prompts: Sequence[Prompt]
    input_tokens: Sequence[int]
    batch: Batch
    attempts: int = 0
    #: Unix time of each 429.
    rejected_at: tuple[float, ...] = ()
    #: Time that it has waited for the governor, or after a 429, in seconds.
    held_seconds: float = 0.0
    first_sent_at: float = 0.0
    throttled_since: float | None = None
    repairs: int = 0
    original_text: str | None = None
    #: Bill of invalid answers, and of other billed replies after which it was sent again.
    wasted: Bill = NOTHING
    #: Attempts that do not count, as the server was down.
    excused: int = 0
    #: Number of times that the flex tier had no capacity, and the Unix time of the first.
    sheds: int = 0
    shed_since: float | None = None
    number: int = field(default_factory=itertools.count().__next__)

    @property
    def rejections(self) -> int:
        """Number of 429s received."""
        return len(self.rejected_at)

    @property
    def is_retry(self) -> bool:
        """Whether the request was sent before."""
        return self.attempts + self.sheds > 0 or bool(self.rejected_at)

    def is_repairable(self, reply: Reply, max_repairs: int) -> bool:
        """Returns whether an invalid reply may be repaired by another request."""
        is_truncated = reply.finish_reason == "max_tokens"  # a repair would be truncated again
        return len(self.prompts) == 1 and self.repairs < max_repairs and not is_truncated

    def request_repair(self, error: RequestError, bill: Bill) -> None:
        """Appends the validation error to the prompt; the bill of the invalid answer is counted at the end."""
        (prompt,) = self.prompts
        self.original_text = (
            self.original_text or prompt.text
        )  # only the last error is appended, so it does not grow
        repair = f"An earlier answer to this was refused: {error.message}\nAnswer with valid JSON alone."
        self.prompts = [dataclasses.replace(prompt, text=f"{self.original_text}\n\n{repair}")]
        self.repairs += 1
        self.wasted = self.wasted.plus(bill)

    def halves(self) -> tuple[Request, Request]:
        """Returns two requests instead of this one; its cost is counted with the first."""
        middle = len(self.prompts) // 2
        first = dataclasses.replace(self, prompts=self.prompts[:middle], input_tokens=self.input_tokens[:middle])
        return first, Request(self.prompts[middle:], self.input_tokens[middle:], self.batch)


def completion_of(
    reply: Reply,
    parsed: Any,
    bill: Bill,
    request: Request,
    latency_seconds: float,
    padded_tokens: int,
    *,
    is_first: bool,
) -> Completion:
    """Returns the answer of a prompt.

    Args:
        reply: Reply of the server.
        parsed: What its text says.
        bill: Bill of the prompt.
        request: The request.
        latency_seconds: Duration of the request, in seconds.
        padded_tokens: Input tokens that the server computed for the prompt.
        is_first: Whether the attempts of the request are counted with this prompt.
    """
    rejected_at = request.rejected_at if is_first else ()
    return Completion(
        **reply.facts(),
        parsed=parsed,
        attempts=request.attempts if is_first else 0,
        rejections=len(rejected_at),
        rejected_at=rejected_at,
        held_seconds=request.held_seconds if is_first else 0.0,
        sheds=request.sheds if is_first else 0,
        repairs=request.repairs,
        latency_seconds=latency_seconds,
        padded_tokens=padded_tokens,
        sent_at=request.first_sent_at,
        answered_at=time.time(),
        **bill._asdict(),
    )


def failure_of(error: RequestError, bill: Bill, request: Request | None, max_repairs: int) -> Failure:
    """Returns the failure of a prompt; its attempts are counted with `request`, unless that is `None`."""
    now = time.time()
    return Failure(
        kind=error.kind,
        message=error.message,
        http_status=error.http_status,
        attempts=request.attempts if request else 0,
        rejections=request.rejections if request else 0,
        rejected_at=request.rejected_at if request else (),
        sheds=request.sheds if request else 0,
        service_tier=error.service_tier,
        category=error.category,
        request_id=error.request_id,
        max_repairs=max_repairs,
        answered_at=now if error.kind in REFUSED else 0.0,
        began_at=request.first_sent_at if request else 0.0,
        failed_at=now,
        **bill._asdict(),
    )


def failures_of(request: Request, failure: Failure) -> list[Outcome]:
    """Returns the same failure for every prompt of a request; its cost is counted with the first."""
    first = dataclasses.replace(
        failure,
        attempts=request.attempts,
        rejections=request.rejections,
        rejected_at=request.rejected_at,
        sheds=request.sheds,
    )
    free = dataclasses.replace(failure, attempts=0, rejections=0, rejected_at=(), sheds=0, **NOTHING._asdict())
    return [first, *[free] * (len(request.prompts) - 1)]
