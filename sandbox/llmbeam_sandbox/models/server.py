"""The path of one request to a model: read, admit, apply a fault, compute, answer, record."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, replace

from aiohttp import web

from llmbeam_sandbox.billing.tokens import Labels, Tier, TokenBill
from llmbeam_sandbox.core.backend import Arrival, Backend
from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.records import RequestRecord
from llmbeam_sandbox.core.responses import Reply, send, until_gone, until_released
from llmbeam_sandbox.models.answers import TOKENIZER, Answer, answer_text, prompt_sha256
from llmbeam_sandbox.models.calls import (
    Dialect,
    ModelCall,
    RefusedError,
    RowDialect,
    StatesLimits,
    damaged,
    preempting,
)
from llmbeam_sandbox.models.provisioned import ProvisionedThroughput
from llmbeam_sandbox.models.quota import LocationQuotas, Quota, QuotaLedger, Rejection
from llmbeam_sandbox.models.schema import SchemaError
from llmbeam_sandbox.models.settings import ModelSettings

NO_CAPACITY = "The model is overloaded at the flex tier. Please try again later."
NO_THROUGHPUT = "Too many requests. Exceeded the Provisioned Throughput."
_NO_ANSWER = Answer(text="", output_tokens=0, is_cut=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What is recorded and billed: one request, or one row of batch inference."""

    dialect: Dialect
    arrival: Arrival
    tier: Tier = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange(_Work):
    """One request on its way; `quotas` are those of its arrival, also after a reset."""

    request: web.Request
    quotas: LocationQuotas

    @property
    def ledger(self) -> QuotaLedger:
        return self.quotas.ledger(self.dialect.location)


class ModelServer:
    """Answers the requests of all APIs to all models, under their quotas.

    Args:
        backend: Clock, faults and request log.
        settings: Settings of the models.
        seed: Seed of the drawn latencies.
    """

    def __init__(self, backend: Backend, settings: ModelSettings, seed: int) -> None:
        self.backend = backend
        self.settings = settings
        self.quotas = LocationQuotas(settings.quota, settings.location_quotas)
        self.provisioned = ProvisionedThroughput()
        self.token_bill = TokenBill(settings.prices)
        self.max_in_flight = 0
        self._random = random.Random(seed)
        self._in_flight = 0
        self._serial = itertools.count()

    @property
    def quota(self) -> Quota:
        """Current limits of each model, where a location has no limits of its own."""
        return self.quotas.at(float("inf"))

    def set_quota(self, quota: Quota, location: str | None) -> None:
        """Changes the limits of a location from now on; None is every location without limits of its own."""
        self.quotas.change(self.backend.now(), quota, location)

    def clear(self) -> None:
        """Restores the limits of the settings, with nothing used."""
        self.quotas = LocationQuotas(self.settings.quota, self.settings.location_quotas)
        self.provisioned.clear()
        self.token_bill.clear()
        self.max_in_flight = 0

    def answer_row(self, dialect: RowDialect, body: bytes, labels: Labels = ()) -> Reply:
        """Answers one request of batch inference: without quota and latency, and billed at the tier `batch`.

        Its labels are those of its job. Of the faults of its method only those have an effect that are the error
        of the row.
        """
        work = _Work(dialect=dialect, arrival=self.backend.arrival(), tier="batch")
        TOKENIZER.set(self.settings.tokenizer)
        call: ModelCall | None = None
        try:
            call = replace(dialect.parse(body), labels=labels)
            fault = self.backend.faults.take(dialect.method, f"{call.system}\n{call.prompt}")
            preempted = preempting(fault, dialect, call) if fault else None
            if preempted is not None and preempted.http_status != 200:
                raise RefusedError(preempted)
            answer = self._computed(call)
        except (RefusedError, SchemaError) as error:
            refusal = error.reply if isinstance(error, RefusedError) else dialect.error(400, str(error))
            self._record(work, call, http_status=refusal.http_status)
            return refusal
        self._record(work, call, http_status=200, answer=answer)
        return dialect.answer(call, answer, f"{call.prompt_sha256[:12]}-{next(self._serial)}")

    def count_row(self, dialect: RowDialect, body: bytes) -> int:
        """Returns the input tokens of a request of batch inference; 0 if it will be refused."""
        TOKENIZER.set(self.settings.tokenizer)
        try:
            return dialect.parse(body).input_tokens
        except RefusedError:
            return 0

    async def serve(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        """Answers one request in the format of `dialect`."""
        exchange = _Exchange(request=request, dialect=dialect, arrival=self.backend.arrival(), quotas=self.quotas)
        TOKENIZER.set(self.settings.tokenizer)
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            return await self._serve(exchange)
        finally:
            self._in_flight -= 1

    async def _serve(self, exchange: _Exchange) -> web.StreamResponse:
        request, dialect = exchange.request, exchange.dialect
        body = await request.read()
        try:
            call = dialect.read(request, body)
        except RefusedError as refused:
            self._record(exchange, None, http_status=refused.reply.http_status)
            return await send(request, refused.reply)
        call = replace(call, tier=self._served_tier(call.tier))
        call = self._provisioned(exchange, call)
        if call.asked_type == "dedicated" and call.tier != "provisioned":
            refusal = dialect.error(429, NO_THROUGHPUT)
            self._record(exchange, call, http_status=429)
            return await send(request, refusal)
        rejection = self._rejection(exchange, call)
        if rejection is not None:
            refusal = dialect.quota_exceeded(call, rejection, rejection.retry_delay_seconds)
            self._record(exchange, call, http_status=refusal.http_status, limit_name=rejection.limit_name)
            return await send(request, self._with_limits(exchange, call, refusal))
        if call.tier == "flex" and self._random.random() < self.settings.flex_shed_ratio:
            shed = dialect.error(503, NO_CAPACITY)
            self._record(exchange, call, http_status=503, limit_name="flex")
            return await send(request, shed)
        # A fault is taken only by a call that the quota has admitted.
        fault = self.backend.faults.take(dialect.method, f"{call.system}\n{call.prompt}")
        preempted = preempting(fault, dialect, call) if fault else None
        if preempted is not None:
            self._record(exchange, call, http_status=preempted.http_status)
            return await send(request, preempted)
        if fault is not None and fault.kind == "hang":
            self._record(exchange, call, http_status=None)
            await until_gone(request)
            return web.Response(status=499)
        if fault is not None and fault.until is not None and not await until_released(request, fault.until):
            self._record(exchange, call, http_status=None)
            return web.Response(status=499)
        return await self._answer(exchange, call, fault)

    def _provisioned(self, exchange: _Exchange, call: ModelCall) -> ModelCall:
        dialect = exchange.dialect
        if not dialect.is_metered:
            return call
        served = self.provisioned.admit(
            self.backend.now(),
            call.model,
            dialect.location,
            call.input_tokens,
            is_shared=call.asked_type == "shared",
        )
        return replace(call, request_type=served, tier="provisioned" if served == "dedicated" else call.tier)

    def _served_tier(self, asked: Tier) -> Tier:
        if asked == "priority" and self._random.random() < self.settings.priority_overflow_ratio:
            return "standard"
        return "standard" if asked == "flex" and not self.settings.has_flex else asked

    def _rejection(self, exchange: _Exchange, call: ModelCall) -> Rejection | None:
        if not exchange.dialect.is_metered or call.tier == "provisioned":
            return None
        return exchange.ledger.admit(self.backend.now(), call.input_tokens, call.model)

    async def _answer(self, exchange: _Exchange, call: ModelCall, fault: Fault | None) -> web.StreamResponse:
        request, dialect = exchange.request, exchange.dialect
        try:
            answer = self._computed(call) if dialect.is_metered else _NO_ANSWER
        except SchemaError as error:
            refusal = dialect.error(400, str(error))
            self._record(exchange, call, http_status=400)
            return await send(request, refusal)
        seconds = await self._pause(dialect, call, answer)
        reply = dialect.answer(call, answer, f"{call.prompt_sha256[:12]}-{next(self._serial)}")
        if call.tier == "provisioned":
            self.provisioned.charge_output(self.backend.now(), call.model, dialect.location, answer.output_tokens)
        else:
            exchange.ledger.charge_output(self.backend.now(), answer.output_tokens, call.model)
        self._record(exchange, call, http_status=reply.http_status, answer=answer)
        reply = self._with_limits(exchange, call, damaged(fault, dialect, reply))
        return await send(request, reply, fault=fault, seconds=seconds)

    def _with_limits(self, exchange: _Exchange, call: ModelCall, reply: Reply) -> Reply:
        """Returns a reply with the headers that state the limits, if the service has them."""
        dialect, now = exchange.dialect, self.backend.now()
        if not dialect.is_metered or not isinstance(dialect, StatesLimits):
            return reply
        headers = dialect.limit_headers(call, exchange.ledger.stated(now, call.model), now)
        return replace(reply, headers={**reply.headers, **headers})

    async def _pause(self, dialect: Dialect, call: ModelCall, answer: Answer) -> float:
        """Waits for the first byte, and returns the duration of the rest of a streamed answer, in seconds."""
        if not dialect.is_metered:
            return 0.0
        latency = self.settings.latency
        first = latency.first_byte_seconds(self._random)
        output = latency.output_seconds(answer.output_tokens)
        await asyncio.sleep(first if call.is_streamed else first + output)
        return output

    def _computed(self, call: ModelCall) -> Answer:
        if call.is_blocked or call.texts:
            return _NO_ANSWER
        if call.parts:
            answers = tuple(map(self._computed, call.parts))
            tokens = sum(answer.output_tokens for answer in answers)
            return Answer(text="", output_tokens=tokens, is_cut=False, parts=answers)
        if (skill := self.settings.skills.get(call.model)) is not None:
            answer = skill.answer(call, self._random)
        else:
            answer = answer_text(
                call.prompt,
                model=call.model,
                system=call.system,
                schema=call.schema,
                max_output_tokens=call.max_output_tokens,
            )
        return replace(answer, text=answer.text.strip('"')) if call.is_enum else answer

    def _record(
        self,
        work: _Work,
        call: ModelCall | None,
        *,
        http_status: int | None,
        answer: Answer | None = None,
        limit_name: str = "",
    ) -> None:
        dialect, arrival = work.dialect, work.arrival
        is_billed = answer is not None and dialect.is_metered
        if call and answer and is_billed and arrival.epoch == self.backend.log.epoch:
            tier = call.tier if work.tier == "standard" else work.tier
            self.token_bill.add(
                call.model,
                tier,
                call.input_tokens,
                call.cached_tokens,
                answer.output_tokens,
                audio_tokens=call.audio_tokens,
                cache_write_tokens=call.cache_write_tokens,
                labels=call.labels,
            )
        self.backend.log.append(
            RequestRecord(
                method=dialect.method,
                model=call.model if call else "",
                prompt_sha256=call.prompt_sha256 if call else "",
                texts_sha256=_hashes(call) if call else (),
                http_status=http_status,
                input_tokens=call.input_tokens if call and is_billed else 0,
                output_tokens=answer.output_tokens if answer and is_billed else 0,
                received_at=arrival.received_at,
                answered_at=None if http_status is None else self.backend.now(),
                is_billed=is_billed,
                resource=dialect.resource,
                limit_name=limit_name,
                request_type=call.request_type if call else "shared",
                media=call.media if call else (),
                labels=call.labels if call else (),
                turns=call.turns if call else (),
            ),
            arrival.epoch,
        )


def _hashes(call: ModelCall) -> tuple[str, ...]:
    return tuple(part.prompt_sha256 for part in call.parts) or tuple(map(prompt_sha256, call.texts))
