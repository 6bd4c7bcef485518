"""The engine: answers batches of prompts, with one outcome for each prompt in every case."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_llmbeam.engine.backends.base import Backend, Reply, StaticBackend
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, FailureKind, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser, VectorParser
from airflow_provider_llmbeam.engine.pacing.budget import Budget
from airflow_provider_llmbeam.engine.pacing.concurrency import ConcurrencyLimit
from airflow_provider_llmbeam.engine.pacing.gate import Admission, Gate, Slots
from airflow_provider_llmbeam.engine.plan import PlannedRequest, StaticBatching, plan
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError, RetryPolicy
from airflow_provider_llmbeam.engine.window import sliding_window

#: Failures that every other prompt would meet, too.
PERMANENT_KINDS: frozenset[FailureKind] = frozenset({"unauthorized", "not_found"})
#: Number of permanent failures, without any answer, after which no more requests are sent; a single prompt may
#: fail for a reason of its own.
MAX_PERMANENT_FAILURES = 10


class Observer(Protocol):
    """Receives the events of an engine, on its event loop: implementations must be quick and thread-safe."""

    def sent(self) -> None:
        """A request was sent."""

    def rejected(self, hold_seconds: float) -> None:
        """A 429 was received and all requests are held."""

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """A prompt has its outcome."""


@dataclass(slots=True)
class _Request:
    """A request and the prompts it contains."""

    prompts: Sequence[Prompt]
    input_tokens: Sequence[int]
    observers: Sequence[Observer] = ()
    attempts: int = 0
    rejections: int = 0
    first_sent_at: float = 0.0
    throttled_since: float | None = None
    repairs: int = 0
    original_text: str | None = None
    wasted_input_tokens: int = 0
    wasted_output_tokens: int = 0

    @property
    def is_retry(self) -> bool:
        return self.attempts + self.rejections > 0

    def request_repair(self, error: RequestError) -> None:
        """Appends the validation error to the prompt; the tokens of the invalid answer are counted at the end."""
        (prompt,) = self.prompts
        self.original_text = (
            self.original_text or prompt.text
        )  # only the last error is appended, so it does not grow
        repair = f"An earlier answer to this was refused: {error.message}\nAnswer with valid JSON alone."
        self.prompts = [dataclasses.replace(prompt, text=f"{self.original_text}\n\n{repair}")]
        self.repairs += 1
        self.wasted_input_tokens += error.input_tokens
        self.wasted_output_tokens += error.output_tokens

    def halves(self) -> tuple[_Request, _Request]:
        """Returns two requests instead of this one; its cost is counted with the first."""
        middle = len(self.prompts) // 2
        first = dataclasses.replace(self, prompts=self.prompts[:middle], input_tokens=self.input_tokens[:middle])
        return first, _Request(self.prompts[middle:], self.input_tokens[middle:], self.observers)


class _InvalidAnswer(Exception):  # noqa: N818 - not an error yet: the prompt is sent again
    """The answer of a single prompt is invalid and can be repaired."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


class Engine:
    """Answers batches of prompts: plan → pace → send → record.

    Args:
        backend: Sends requests; a `StaticBackend` takes several prompts per request.
        governor: Admits requests.
        buckets: Predicts the tokens to reserve.
        parser: Validates answers.
        policy: Decides about retries.
        max_in_flight: Maximum number of concurrent requests, over all batches of this process.
        request_timeout_seconds: Timeout of one attempt, in seconds.
        observers: Observers of all events.
        batching: Limits of a static-batch server.
        max_repairs: Maximum number of times that a prompt is sent again because its answer is invalid.
        concurrency: Lowers the number of concurrent requests by latency, for a self-hosted server.
        budget: Stops sending when it is spent.
        clock: Clock in seconds; with a shared governor the same for all processes of the machine.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        governor: Admission,
        buckets: LengthBuckets,
        parser: OutputParser | VectorParser,
        policy: RetryPolicy,
        max_in_flight: int,
        request_timeout_seconds: float,
        observers: Sequence[Observer] = (),
        batching: StaticBatching | None = None,
        max_repairs: int = 0,
        concurrency: ConcurrencyLimit | None = None,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._gate = Gate(governor, clock)
        self._buckets = buckets
        self._parser = parser
        self._policy = policy
        self._max_in_flight = max_in_flight
        self._concurrency = concurrency
        self._slots = Slots(lambda: concurrency.limit if concurrency else max_in_flight)
        self._request_timeout_seconds = request_timeout_seconds
        self._observers = tuple(observers)
        self._batching = batching if isinstance(backend, StaticBackend) else None
        self._max_repairs = max_repairs
        self._budget = budget
        self._clock = clock
        self._answers = 0
        self._permanent_failures = 0
        self._stopped_by: Failure | None = None

    @property
    def throttled_seconds(self) -> float:
        """Time that requests have waited for the governor so far, in seconds."""
        return self._gate.waited_seconds

    async def answer(self, prompts: Sequence[Prompt], observers: Sequence[Observer] = ()) -> list[Outcome]:
        """Answers a batch.

        Args:
            prompts: The batch.
            observers: Observers of this batch only, e.g. its journal.

        Returns:
            One outcome per prompt, in the order given.

        Raises:
            BudgetExceededError: The budget was spent before all prompts were sent; requests in flight were awaited
                and observed.
        """
        outcomes: dict[int, Outcome] = {}
        all_observers = (*observers, *self._observers)

        async def send(planned: PlannedRequest) -> None:
            request = _Request([prompts[index] for index in planned.indices], planned.input_tokens, all_observers)
            async with self._slots:
                answered = await self._outcomes(request)
            for index, outcome in zip(planned.indices, answered, strict=True):
                if outcome is None:
                    continue
                outcomes[index] = outcome
                for observer in all_observers:
                    observer.finished(prompts[index], outcome)

        requests = plan(prompts, self._batching)
        await sliding_window(requests, send, min(self._max_in_flight, len(requests)))
        if self._budget is not None and len(outcomes) < len(prompts):
            raise self._budget.error()
        return [outcomes[index] for index in range(len(prompts))]

    async def aclose(self) -> None:
        """Closes the backend's connections."""
        await self._backend.aclose()

    async def _outcomes(self, request: _Request) -> Sequence[Outcome | None]:
        """Retries until there is an answer or the policy allows no retry; `None` if the budget is spent before."""
        while self._stopped_by is None:
            if self._is_budget_spent:
                return [None] * len(request.prompts)
            try:
                return await self._attempt(request)
            except _InvalidAnswer as invalid:
                request.request_repair(invalid.error)
                continue
            except RequestError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - a defect must not fail the other prompts of the batch
                failure = RequestError("internal", f"{type(error).__name__}: {error}")
            now = self._clock()
            wait_seconds = self._policy.wait_seconds(
                failure,
                attempts=request.attempts,
                throttled_seconds=now - (request.throttled_since or now),
                chance=random.random(),
            )
            if wait_seconds is None:
                return await self._fail(request, failure)
            await asyncio.sleep(wait_seconds)
        input_tokens, output_tokens = request.wasted_input_tokens, request.wasted_output_tokens
        stopped = dataclasses.replace(self._stopped_by, input_tokens=input_tokens, output_tokens=output_tokens)
        return _failures(request, stopped)

    @property
    def _is_budget_spent(self) -> bool:
        return self._budget is not None and self._budget.is_spent

    async def _attempt(self, request: _Request) -> Sequence[Outcome | None]:
        """Sends one request as soon as the governor admits it."""
        reserved = sum(tokens + self._buckets.expected_output_tokens(tokens) for tokens in request.input_tokens)
        await self._gate.wait_for_admission(reserved, is_retry=request.is_retry)
        if self._stopped_by is not None:
            raise RequestError(self._stopped_by.kind, self._stopped_by.message)
        if self._is_budget_spent:
            return [None] * len(request.prompts)
        request.attempts += 1
        request.first_sent_at = request.first_sent_at or time.time()
        for observer in request.observers:
            observer.sent()
        started = self._clock()
        try:
            async with asyncio.timeout(self._request_timeout_seconds):
                replies = await self._complete(request.prompts)
        except TimeoutError:
            error = RequestError(
                "timeout", f"no answer within {self._request_timeout_seconds:g} s (`request_timeout_seconds`)"
            )
            self._on_error(request, error, reserved)
            raise error from None
        except RequestError as error:
            self._on_error(request, error, reserved)
            raise
        for reply in replies:
            self._pay(reply)
        used = sum(reply.input_tokens + reply.output_tokens for reply in replies)
        self._gate.governor.settle(reserved, used, is_answered=True)
        latency_seconds = self._clock() - started
        self._gate.answered(latency_seconds, self._max_in_flight)
        return self._outcomes_of_replies(request, replies, latency_seconds)

    def _pay(self, billed: Reply | RequestError) -> None:
        if self._budget is not None:
            self._budget.add(billed.input_tokens, billed.output_tokens)
            if self._budget.is_spent:
                self._gate.release_all()

    async def _complete(self, prompts: Sequence[Prompt]) -> list[Reply]:
        if self._batching is not None and isinstance(self._backend, StaticBackend):
            return await self._backend.complete_batch(prompts)
        (prompt,) = prompts
        return [await self._backend.complete(prompt)]

    def _on_error(self, request: _Request, error: RequestError, reserved: float) -> None:
        self._pay(error)
        if error.kind != "throttled":
            request.throttled_since = None
            if self._concurrency and error.kind in ("timeout", "server_error"):
                self._concurrency.dropped()
            if error.http_status is not None:
                self._gate.governor.settle(reserved, error.input_tokens + error.output_tokens)
            return
        request.attempts -= 1
        request.rejections += 1
        request.throttled_since = request.throttled_since or self._clock()
        self._gate.governor.settle(reserved, 0)
        hold_seconds = self._gate.rejected(error.retry_after_seconds)
        for observer in request.observers:
            observer.rejected(hold_seconds)

    def _outcomes_of_replies(
        self, request: _Request, replies: Sequence[Reply], latency_seconds: float
    ) -> list[Outcome]:
        """Converts replies into outcomes; an invalid one fails its own prompt only."""
        padded_tokens = max(reply.input_tokens for reply in replies)
        if self._concurrency:
            self._concurrency.answered(latency_seconds, max(reply.output_tokens for reply in replies))
        outcomes: list[Outcome] = []
        for reply, input_tokens in zip(replies, request.input_tokens, strict=True):
            self._buckets.learn(input_tokens, reply.output_tokens)
            self._answers += 1
            first = not outcomes
            try:
                parsed = self._parser.parse(reply)
            except RequestError as error:
                if self._is_repairable(request, reply):
                    raise _InvalidAnswer(error) from None
                outcomes.append(_failure(error, request if first else None))
                continue
            outcomes.append(
                Completion(
                    text=reply.text,
                    parsed=parsed,
                    model=reply.model,
                    finish_reason=reply.finish_reason,
                    input_tokens=reply.input_tokens + request.wasted_input_tokens,
                    output_tokens=reply.output_tokens + request.wasted_output_tokens,
                    attempts=request.attempts if first else 0,
                    rejections=request.rejections if first else 0,
                    repairs=request.repairs,
                    latency_seconds=latency_seconds,
                    first_token_seconds=reply.first_token_seconds,
                    padded_tokens=padded_tokens,
                    sent_at=request.first_sent_at,
                    answered_at=time.time(),
                )
            )
        return outcomes

    def _is_repairable(self, request: _Request, reply: Reply) -> bool:
        is_truncated = reply.finish_reason == "max_tokens"  # a repair would be truncated again
        return len(request.prompts) == 1 and request.repairs < self._max_repairs and not is_truncated

    async def _fail(self, request: _Request, error: RequestError) -> Sequence[Outcome | None]:
        if error.kind == "bad_request" and len(request.prompts) > 1:
            # One bad prompt fails the whole request: the other prompts are sent without it.
            first, second = request.halves()
            return [*await self._outcomes(first), *await self._outcomes(second)]
        if error.kind in PERMANENT_KINDS and not self._answers:
            self._permanent_failures += len(request.prompts)
        if self._stopped_by is None and (
            error.kind == "quota_exhausted" or self._permanent_failures >= MAX_PERMANENT_FAILURES
        ):
            self._stopped_by = Failure(
                kind=error.kind, message=f"not sent, as others before it failed: {error.message}"
            )
        return _failures(request, _failure(error, request))


def _failure(error: RequestError, request: _Request | None) -> Failure:
    return Failure(
        kind=error.kind,
        message=error.message,
        http_status=error.http_status,
        attempts=request.attempts if request else 0,
        rejections=request.rejections if request else 0,
        input_tokens=error.input_tokens + (request.wasted_input_tokens if request else 0),
        output_tokens=error.output_tokens + (request.wasted_output_tokens if request else 0),
    )


def _failures(request: _Request, failure: Failure) -> list[Outcome]:
    """Returns the same failure for every prompt of a request; its cost is counted with the first."""
    first = dataclasses.replace(failure, attempts=request.attempts, rejections=request.rejections)
    free = dataclasses.replace(failure, attempts=0, rejections=0, input_tokens=0, output_tokens=0)
    return [first, *[free] * (len(request.prompts) - 1)]
