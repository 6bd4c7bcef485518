"""The engine: answers batches of prompts, with one outcome for each prompt in every case."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from airflow_provider_llmbeam.engine.backend import Backend, Reply, StaticBackend
from airflow_provider_llmbeam.engine.bill import NOTHING, Bill
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.media.loader import MediaLoader, has_media
from airflow_provider_llmbeam.engine.outcome import OF_EVERY_PROMPT, Failure, Outcome, without_secrets
from airflow_provider_llmbeam.engine.output import OutputParser, VectorParser
from airflow_provider_llmbeam.engine.pacing.breaker import Breaker
from airflow_provider_llmbeam.engine.pacing.budget import Budget
from airflow_provider_llmbeam.engine.pacing.concurrency import ConcurrencyLimit
from airflow_provider_llmbeam.engine.pacing.gate import Admission, Gate, Slots
from airflow_provider_llmbeam.engine.pacing.outage import Outage
from airflow_provider_llmbeam.engine.pacing.pilot import Pilot
from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.plan import PlannedRequest, StaticBatching, in_order, plan
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.request import (
    Batch,
    InvalidAnswer,
    NextTurn,
    Observer,
    Record,
    Request,
    completion_of,
    failure_of,
    failures_of,
)
from airflow_provider_llmbeam.engine.retry import TRANSIENT_KINDS, RequestError, RetryPolicy
from airflow_provider_llmbeam.engine.tier import FlexTier, ShedError, Tier
from airflow_provider_llmbeam.engine.unstored import Unstored
from airflow_provider_llmbeam.engine.window import sliding_window
from airflow_provider_llmbeam.exceptions import JobFailedError, LLMBeamError
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Number of permanent failures, without any answer, after which no more requests are sent; a single prompt may
#: fail for a reason of its own.
MAX_PERMANENT_FAILURES = 10
#: Maximum number of attempts of a request that do not count, as the server was down: an outage of an hour has 720
#: probes.
MAX_EXCUSED = 1000


class Engine:
    """Answers batches of prompts: plan → pace → send → record.

    It knows neither Beam nor a provider. Order, pace, retries, repairs and budget are decided here; the `Backend`
    of a provider sends each request exactly once, and observers, such as that of the journal, get each outcome.

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
        price: Price of the tokens, if it is known.
        budget: Stops sending when it is spent.
        media: Reads the files of prompts.
        pilot: Stops sending if the first rows of the process all fail for one reason.
        outage: Holds requests while the server is down, and ends the job if it stays down.
        flex: The flex tier, if requests are sent there.
        redact: Makes a text for people of what a server wrote beside an answer.
        is_resident: Whether what ends the sending is an error, as prompts that are not sent have no end of a job
            at which they would be counted.
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
        price: Price | None = None,
        budget: Budget | None = None,
        media: MediaLoader | None = None,
        pilot: Pilot | None = None,
        outage: Outage | None = None,
        flex: FlexTier | None = None,
        redact: Callable[[str], str] = lambda text: text,
        is_resident: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._standard = Tier(backend, request_timeout_seconds)
        self._gate = Gate(governor, clock, self._has_ended)
        self._buckets = buckets
        self._parser = parser
        self._policy = policy
        self._max_in_flight = max_in_flight
        self._concurrency = concurrency
        self._pilot = pilot or Pilot(max_repairs=max_repairs)
        self._breaker = Breaker(self._pilot, outage or Outage(), clock, self._has_ended)
        self._slots = Slots(self._most_in_flight)
        self._unstored = Unstored(max_in_flight, self._slots.wake)
        self._observers = tuple(observers)
        self._batching = batching if isinstance(backend, StaticBackend) else None
        self._max_repairs = max_repairs
        self._price = price
        self._budget = budget
        self._media = media
        self._flex = flex
        self._redact = redact
        self._is_resident = is_resident
        self._clock = clock
        self._answers = 0
        self._permanent_failures = 0
        self._stopped_by: Failure | None = None
        self._stop_error: Exception | None = None
        self._is_released = asyncio.Event()
        self._judge()

    @property
    def max_instances(self) -> int:
        """Maximum number of prompts of one request."""
        return 1 if self._batching is None else self._batching.max_instances

    @property
    def throttled_seconds(self) -> float:
        """Time that requests have waited for the governor so far, in seconds."""
        return self._gate.waited_seconds

    def share_quota(self, machines: float) -> None:
        """Takes another number of machines that share the quota."""
        self._gate.governor.share_among(machines)

    async def answer(
        self,
        prompts: Sequence[Prompt],
        observers: Sequence[Observer] = (),
        record: Record | None = None,
        next_turn: NextTurn | None = None,
    ) -> list[Outcome]:
        """Answers a batch.

        Args:
            prompts: The batch.
            observers: Observers of this batch only.
            record: Stores the outcomes of this batch.
            next_turn: Returns what is sent after an outcome, and so on; the prompts are then sent as given.

        Returns:
            One outcome per prompt, in the order given; the last one, if others were sent after it.

        Raises:
            BudgetExceededError: The budget was spent before all prompts were sent; requests in flight were awaited
                and observed.
            ModelUnavailableError: The server is down; nothing more was sent.
            JobFailedError: Others before failed, so that nothing more was sent, and the engine is resident.
            Exception: An observer failed, e.g. the journal on a full disk; nothing more was sent, and requests in
                flight were awaited and observed. Also the error of `stop`.
        """
        outcomes: dict[int, Outcome] = {}
        own_observers = observers if record is None else (record, *observers)
        batch = Batch((*own_observers, *self._observers), record)

        async def send(planned: PlannedRequest, turn: Prompt | None = None) -> None:
            sent = [turn or prompts[index] for index in planned.indices]
            request = Request(sent, planned.input_tokens, batch)
            async with self._slots:
                try:
                    answered = await self._send_until_answered(request)
                finally:
                    self._pilot.finished()
                for index, prompt, outcome in zip(planned.indices, sent, answered, strict=True):
                    outcomes.pop(index, None)
                    if outcome is not None:
                        outcomes[index] = without_secrets(outcome, self._redact)
                        batch.finished(prompt, outcomes[index])
                self._unstored.finished(batch)

        async def send_turns(planned: PlannedRequest) -> None:
            await send(planned)
            (index,) = planned.indices
            while next_turn and index in outcomes and (turn := next_turn(index, outcomes[index])):
                await send(in_order([turn], index)[0], turn)

        ask = send_turns if next_turn else send
        requests = in_order(prompts) if next_turn else plan(prompts, self._batching)
        self._gate.backlog += len(requests)
        try:
            async with self._unstored.of(batch):
                await sliding_window(self._pilot.spread(requests), ask, min(self._max_in_flight, len(requests)))
        finally:
            self._gate.backlog -= len(requests)
        if batch.error is not None:
            raise batch.error
        if self._stop_error is not None and len(outcomes) < len(prompts):
            raise self._stop_error
        if self._budget is not None and len(outcomes) < len(prompts):
            raise self._budget.error()
        return [outcomes[index] for index in range(len(prompts))]

    def _most_in_flight(self) -> int:
        most = self._max_in_flight - self._unstored.count
        if self._concurrency:
            most = min(most, self._concurrency.limit)
        return most if self._pilot.is_over else int(min(most, self._pilot.room))

    def stop(self, error: Exception) -> None:
        """Ends sending: requests in flight are awaited and observed, and every batch then raises the error."""
        self._stop_error = error
        self._release_all()
        self._unstored.store()  # before the requests in flight are awaited, as this process may end sooner

    async def aclose(self) -> None:
        """Closes the backend's connections."""
        if self._media is not None:
            self._media.close()
        for tier in filter(None, (self._standard, self._flex)):
            await tier.backend.aclose()

    async def _send_until_answered(self, request: Request) -> Sequence[Outcome | None]:
        """Retries until there is an answer or the policy allows no retry; `None` if sending ends before."""
        while self._stopped_by is None:
            if self._is_over(request):
                return [None] * len(request.prompts)
            try:
                if self._media is None or not has_media(request.prompts):
                    return await self._send(request, request.prompts)
                async with self._media.loaded(request.prompts) as prompts:  # their time is not that of the request
                    return await self._send(request, prompts)
            except InvalidAnswer as invalid:
                request.request_repair(invalid.error, self._bill(invalid.error))
                continue
            except ShedError as shed:
                if shed.wait_seconds is None:
                    return await self._fail(request, shed.error)
                await self._pause(shed.wait_seconds)
                continue
            except RequestError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - a defect must not fail the other prompts of the batch
                failure = RequestError("internal", f"{type(error).__name__}: {error}")
            now = self._clock()
            is_down = self._breaker.failed(request.number, failure) and request.excused < MAX_EXCUSED
            request.excused += is_down or (failure.is_overload and failure.kind != "throttled")
            self._judge()
            wait_seconds = self._policy.wait_seconds(
                failure,
                attempts=request.attempts - (0 if failure.is_overload else request.excused),
                # An outage has a limit of its own.
                throttled_seconds=0.0 if is_down else now - (request.throttled_since or now),
                chance=random.random(),
            )
            if wait_seconds is None:
                return await self._fail(request, failure)
            request.wasted = request.wasted.plus(self._bill(failure))
            await self._pause(wait_seconds)
            if failure.kind == "throttled":
                request.held_seconds += self._clock() - now
        return failures_of(request, dataclasses.replace(self._stopped_by, **request.wasted._asdict()))

    def _is_over(self, request: Request) -> bool:
        """Whether nothing more is sent: after `stop`, an answer that could not be recorded, or a spent budget."""
        return self._stop_error is not None or request.batch.error is not None or self._is_budget_spent()

    def _is_budget_spent(self) -> bool:
        return self._budget is not None and self._budget.is_spent

    def _has_ended(self) -> bool:
        """Whether nothing is sent now, so that nothing waits; a spent budget may begin anew."""
        return self._stopped_by is not None or self._stop_error is not None or self._is_budget_spent()

    async def _send(self, request: Request, prompts: Sequence[Prompt]) -> Sequence[Outcome | None]:
        """Sends one request as soon as a shared budget and the governor admit it."""
        account = None if self._budget is None else self._budget.account
        if account is None:
            return await self._send_in_budget(request, prompts)
        cost = self._expected_cost(request)
        try:
            while (wait_seconds := account.admit(cost)) > 0:
                if self._stopped_by is not None:
                    raise RequestError(self._stopped_by.kind, self._stopped_by.message)
                if self._is_over(request):
                    self._release_all()
                    return [None] * len(request.prompts)
                await self._pause(wait_seconds)
        except (OSError, LLMBeamError) as error:  # whether the budget is spent is not known
            self.stop(error)
            return [None] * len(request.prompts)
        try:
            return await self._send_in_budget(request, prompts)
        finally:
            account.release(cost)

    def _expected_cost(self, request: Request) -> int:
        """Returns what a request may cost, in billionths of a US dollar."""
        if self._price is None:
            return 0
        expected = self._buckets.expected_output_tokens
        costs = (self._price.cost_usd(tokens, expected(tokens)) for tokens in request.input_tokens)
        return math.ceil(sum(costs) * NANO)

    async def _send_in_budget(self, request: Request, prompts: Sequence[Prompt]) -> Sequence[Outcome | None]:
        """Sends one request as soon as the governor admits it."""
        if self._breaker.outage.is_open:  # before the governor: at its end all who wait go on at once
            await self._breaker.wait()
        reserve = partial(self._buckets.reserved_tokens, request.input_tokens)
        reserved, held_seconds = await self._gate.wait_for_admission(reserve, is_retry=request.is_retry)
        request.held_seconds += held_seconds
        if self._stopped_by is not None:
            raise RequestError(self._stopped_by.kind, self._stopped_by.message)
        if self._is_over(request):
            return [None] * len(request.prompts)
        request.attempts += 1
        request.first_sent_at = request.first_sent_at or time.time()
        for observer in request.batch.observers:
            observer.sent()
        tier = self._flex if self._flex is not None and self._flex.takes(request) else self._standard
        started = self._clock()
        try:
            with tier.timeout:
                if self._batching is not None and isinstance(tier.backend, StaticBackend):
                    replies = await tier.backend.complete_batch(prompts)
                else:
                    replies = [await tier.backend.complete(*prompts)]
        except TimeoutError:
            error = RequestError(
                "timeout", f"no answer within {tier.timeout_seconds:g} s (`request_timeout_seconds`)"
            )
            self._on_error(request, error, reserved, started)
            raise error from None
        except RequestError as error:
            if (shed := tier.shed(request, error)) is not None:
                self._gate.governor.settle(reserved, 0)
                raise shed from None
            self._on_error(request, error, reserved, started)
            raise
        finally:
            tier.ended(request)
        tier.answered()
        self._breaker.answered()
        for reply in replies:
            self._pay(reply)
        used = sum(reply.tokens.input + reply.tokens.output for reply in replies)
        self._gate.governor.settle(reserved, used, is_answered=True)
        latency_seconds = self._clock() - started
        self._gate.answered(latency_seconds, self._max_in_flight)
        return await self._outcomes_of_replies(request, replies, latency_seconds)

    def _pay(self, billed: Reply | RequestError) -> None:
        if self._budget is not None:
            self._budget.add(self._bill(billed), self._price)
            if self._is_budget_spent():
                self._release_all()

    def _bill(self, billed: Reply | RequestError, request: Request | None = None) -> Bill:
        """Returns the bill of a reply, and of the useless ones before it if it is the last of a request."""
        bill = Bill.of(billed.tokens, self._price, billed.service_tier)
        return bill.plus(request.wasted) if request and request.wasted is not NOTHING else bill

    def _on_error(self, request: Request, error: RequestError, reserved: float, sent_at: float) -> None:
        self._pay(error)
        request.throttled_since = (request.throttled_since or self._clock()) if error.is_overload else None
        if error.kind != "throttled":
            if self._concurrency and error.kind in ("timeout", "server_error"):
                self._concurrency.dropped()
            if error.http_status is not None:
                self._gate.governor.settle(reserved, error.tokens.input + error.tokens.output)
            return
        request.attempts -= 1
        request.rejected_at += (time.time(),)
        self._gate.governor.settle(reserved, 0)
        rejection = Rejection(error.retry_after_seconds, sent_at, reserved, error.quota_unit, random.random())
        hold_seconds = self._gate.rejected(rejection)
        for observer in request.batch.observers:
            observer.rejected(hold_seconds)

    async def _outcomes_of_replies(
        self, request: Request, replies: Sequence[Reply], latency_seconds: float
    ) -> list[Outcome]:
        """Converts replies into outcomes; an invalid one fails its own prompt only."""
        replies = [*map(self._parser.mended, replies)]
        padded_tokens = max(reply.tokens.input for reply in replies)
        if self._concurrency:
            self._concurrency.answered(latency_seconds, max(reply.tokens.output for reply in replies))
        outcomes: list[Outcome] = []
        for reply, input_tokens in zip(replies, request.input_tokens, strict=True):
            self._buckets.learn(input_tokens, reply.tokens.output)
            self._answers += 1
            first = not outcomes
            try:
                parsed = await self._parser.parse_on_loop(reply)
            except RequestError as error:
                if error.kind in TRANSIENT_KINDS and len(request.prompts) == 1:
                    raise
                if request.is_repairable(reply, self._max_repairs):
                    raise InvalidAnswer(error) from None
                outcomes.append(self._failed(error, request if first else None))
                continue
            self._pilot.answered()
            bill = self._bill(reply, request if first else None)
            outcomes.append(
                completion_of(reply, parsed, bill, request, latency_seconds, padded_tokens, is_first=first)
            )
        return outcomes

    async def _fail(self, request: Request, error: RequestError) -> Sequence[Outcome | None]:
        if error.kind == "bad_request" and len(request.prompts) > 1:
            # One bad prompt fails the whole request: the other prompts are sent without it.
            first, second = request.halves()
            return [*await self._send_until_answered(first), *await self._send_until_answered(second)]
        if error.kind in OF_EVERY_PROMPT and not self._answers:
            self._permanent_failures += len(request.prompts)
        if self._stopped_by is None and (
            error.kind == "quota_exhausted" or self._permanent_failures >= MAX_PERMANENT_FAILURES
        ):
            message = f"not sent, as others before it failed: {error.message}"
            self._end(Failure(kind=error.kind, message=message))
        failures = failures_of(request, self._failed(error, request))
        for _ in request.prompts[1:]:
            self._pilot.failed(error.kind, error.message)
        self._judge()
        return failures

    def _failed(self, error: RequestError, request: Request | None) -> Failure:
        """Counts the final failure of a prompt."""
        self._pilot.failed(error.kind, error.message)
        self._judge()
        return failure_of(error, self._bill(error, request), request, self._max_repairs)

    def _judge(self) -> None:
        """Ends the sending if the breaker says so."""
        if self._stopped_by is not None or self._stop_error is not None:
            return
        match self._breaker.ending():
            case Failure() as failure:
                self._end(failure)
            case Exception() as error:
                self.stop(error)

    def _end(self, failure: Failure) -> None:
        """Ends sending: what is not sent has this failure."""
        if self._is_resident:
            self.stop(JobFailedError(f"Nothing more is sent: {failure.message} ({failure.kind})."))
            return
        self._stopped_by = failure
        self._release_all()

    async def _pause(self, seconds: float) -> None:
        """Waits before a request is sent again, unless nothing is sent any more."""
        if self._has_ended():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_released.wait()

    def _release_all(self) -> None:
        """Releases the requests that wait: nothing is sent now."""
        self._is_released.set()
        self._is_released.clear()
        self._gate.release_all()
        self._breaker.release_all()
