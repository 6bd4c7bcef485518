"""One engine per process: it answers batches of prompts, one outcome for each, in every case."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_llmbeam.engine.backends.base import Backend, Reply
from airflow_provider_llmbeam.engine.governor import Governor
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, FailureKind, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.plan import PlannedRequest, plan
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError, RetryPolicy
from airflow_provider_llmbeam.engine.window import sliding_window

#: Failures that every further row would meet again.
HOPELESS_KINDS: frozenset[FailureKind] = frozenset({"unauthorized", "not_found"})
#: That many of them, with no answer before, end the sending: one row may be alone in its trouble.
HOPELESS_AFTER = 10


class Observer(Protocol):
    """Watches an engine at work. Called on the engine's loop: be quick, be thread-safe."""

    def sent(self) -> None:
        """A request left."""

    def rejected(self, hold_seconds: float) -> None:
        """A 429 came back and everybody waits."""

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """A prompt has its outcome."""


@dataclass(slots=True)
class _Row:
    """One prompt on its way."""

    prompt: Prompt
    input_tokens: int
    attempts: int = 0
    rejections: int = 0
    first_sent_at: float = 0.0
    throttled_since: float | None = None


class Engine:
    """plan → pace → send → record.

    Args:
        backend: Sends one request.
        governor: Admits requests.
        buckets: Forecast the tokens to reserve.
        parser: Checks answers.
        policy: Decides about retries.
        max_in_flight: Requests under way at once, over all batches of this process.
        request_timeout_seconds: Of one try.
        observers: Told of every event; a journal is one of them.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        governor: Governor,
        buckets: LengthBuckets,
        parser: OutputParser,
        policy: RetryPolicy,
        max_in_flight: int,
        request_timeout_seconds: float,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._governor = governor
        self._buckets = buckets
        self._parser = parser
        self._policy = policy
        self._max_in_flight = max_in_flight
        self._slots = asyncio.Semaphore(max_in_flight)
        self._request_timeout_seconds = request_timeout_seconds
        self._observers = tuple(observers)
        self._clock = clock
        self._answers = 0
        self._hopeless = 0
        self._stopped_by: Failure | None = None

    async def answer(self, prompts: Sequence[Prompt]) -> list[Outcome]:
        """Answers a batch.

        Returns:
            One outcome per prompt, in the order given.
        """
        outcomes: list[Outcome | None] = [None] * len(prompts)

        async def send(request: PlannedRequest) -> None:
            prompt = prompts[request.index]
            async with self._slots:
                outcome = await self._outcome(_Row(prompt, request.input_tokens))
            outcomes[request.index] = outcome
            for observer in self._observers:
                observer.finished(prompt, outcome)

        await sliding_window(plan(prompts), send, min(self._max_in_flight, len(prompts)))
        return [outcome for outcome in outcomes if outcome is not None]

    async def aclose(self) -> None:
        """Closes the backend's connections."""
        await self._backend.aclose()

    async def _outcome(self, row: _Row) -> Outcome:
        """Tries until there is an answer or the policy gives up."""
        while self._stopped_by is None:
            try:
                return await self._attempt(row)
            except RequestError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - a defect must not take the neighbours with it
                failure = RequestError("internal", f"{type(error).__name__}: {error}")
            wait_seconds = self._policy.wait_seconds(
                failure,
                attempts=row.attempts,
                throttled_seconds=self._clock() - (row.throttled_since or self._clock()),
                chance=random.random(),
            )
            if wait_seconds is None:
                return self._give_up(row, failure)
            await asyncio.sleep(wait_seconds)
        return dataclasses.replace(self._stopped_by, attempts=row.attempts, rejections=row.rejections)

    async def _attempt(self, row: _Row) -> Completion:
        """Sends one request at its time."""
        reserved = row.input_tokens + self._buckets.expected_output_tokens(row.input_tokens)
        await self._admission(reserved)
        if self._stopped_by is not None:
            raise RequestError(self._stopped_by.kind, self._stopped_by.message)
        row.attempts += 1
        row.first_sent_at = row.first_sent_at or time.time()
        for observer in self._observers:
            observer.sent()
        started = self._clock()
        try:
            async with asyncio.timeout(self._request_timeout_seconds):
                reply = await self._backend.complete(row.prompt)
        except TimeoutError:
            row.throttled_since = None
            raise RequestError(
                "timeout", f"no answer within {self._request_timeout_seconds:g} s (`request_timeout_seconds`)"
            ) from None
        except RequestError as error:
            self._governor.settle(reserved, error.input_tokens + error.output_tokens)
            if error.kind == "throttled":
                self._on_rejection(row, error)
            else:
                row.throttled_since = None
            raise
        return self._completion(row, reply, reserved, self._clock() - started)

    async def _admission(self, tokens: float) -> None:
        ticket = self._governor.reserve(self._clock(), tokens)
        while (delay := self._governor.delay(self._clock(), ticket)) > 0:  # noqa: ASYNC110 - no event, a clock
            await asyncio.sleep(delay)

    def _on_rejection(self, row: _Row, error: RequestError) -> None:
        now = self._clock()
        row.attempts -= 1
        row.rejections += 1
        row.throttled_since = row.throttled_since or now
        hold_seconds = self._governor.rejected(now, error.retry_after_seconds)
        for observer in self._observers:
            observer.rejected(hold_seconds)

    def _completion(self, row: _Row, reply: Reply, reserved: float, latency_seconds: float) -> Completion:
        self._governor.settle(reserved, reply.input_tokens + reply.output_tokens)
        self._governor.answered()
        self._buckets.learn(row.input_tokens, reply.output_tokens)
        self._answers += 1
        return Completion(
            text=reply.text,
            parsed=self._parser.parse(reply),
            model=reply.model,
            finish_reason=reply.finish_reason,
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
            attempts=row.attempts,
            rejections=row.rejections,
            latency_seconds=latency_seconds,
            sent_at=row.first_sent_at,
            answered_at=time.time(),
        )

    def _give_up(self, row: _Row, error: RequestError) -> Failure:
        failure = Failure(
            kind=error.kind,
            message=error.message,
            http_status=error.http_status,
            attempts=row.attempts,
            rejections=row.rejections,
            input_tokens=error.input_tokens,
            output_tokens=error.output_tokens,
        )
        if error.kind in HOPELESS_KINDS and not self._answers:
            self._hopeless += 1
        if self._stopped_by is None and (error.kind == "quota_exhausted" or self._hopeless >= HOPELESS_AFTER):
            self._stopped_by = Failure(
                kind=error.kind, message=f"not sent, as others before it failed: {error.message}"
            )
        return failure
