"""The path of one request: read, admit, meet a fault, think, answer, record."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from airflow_provider_llmbeam.sandbox.core.clock import Clock
from airflow_provider_llmbeam.sandbox.core.faults import Fault, Faults
from airflow_provider_llmbeam.sandbox.core.records import RequestLog, RequestRecord
from airflow_provider_llmbeam.sandbox.core.responses import (
    Dialect,
    ModelCall,
    RefusedError,
    damaged,
    preempting,
    send,
    until_gone,
    until_released,
)
from airflow_provider_llmbeam.sandbox.models.answers import (
    TOKENIZER,
    Answer,
    Tokenizer,
    answer_text,
    count_bytes,
    prompt_sha256,
)
from airflow_provider_llmbeam.sandbox.models.latency import Latency
from airflow_provider_llmbeam.sandbox.models.quota import LocationQuotas, Quota, Rejection
from airflow_provider_llmbeam.sandbox.models.schema import SchemaError

_NO_ANSWER = Answer(text="", output_tokens=0, is_cut=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """When a request came in, and into which epoch of the log."""

    received_at: float
    epoch: int
    quotas: LocationQuotas


class Backend:
    """Everything the sandbox knows between two requests.

    Args:
        quota: What each model may be asked, on Vertex AI's paths in each location.
        location_quotas: Location to what is allowed there instead.
        tokenizer: Returns the tokens of a text.
        latency: How long an answer takes.
        clock: Read for quotas and records, seconds since the epoch.
        seed: Of the latencies drawn.
    """

    def __init__(
        self,
        *,
        quota: Quota,
        latency: Latency,
        clock: Clock,
        seed: int,
        location_quotas: Mapping[str, Quota] | None = None,
        tokenizer: Tokenizer = count_bytes,
    ) -> None:
        self._initial_quotas = quota, dict(location_quotas or {})
        self.quotas = LocationQuotas(*self._initial_quotas)
        self.faults = Faults()
        self.log = RequestLog()
        self.max_in_flight = 0
        self.billed_bytes = 0
        self.refused_hosts: Counter[str] = Counter()
        self.on_reset: list[Callable[[], None]] = []
        self.jobs_by_state: Callable[[], dict[str, int]] = dict
        self.bill: Callable[[float], dict[str, Any]] = lambda after: {}
        self._latency = latency
        self._clock = clock
        self._random = random.Random(seed)
        self._tokenizer = tokenizer
        self._in_flight = 0
        self._serial = itertools.count()

    @property
    def quota(self) -> Quota:
        """What each model may be asked now, where a location has no quota of its own."""
        return self.quotas.at(float("inf"))

    def reset(self) -> None:
        """Forget requests, faults, changes of the quota and what was used of it, and what the services hold."""
        self.log.clear()
        self.faults.clear()
        self.quotas = LocationQuotas(*self._initial_quotas)
        self.max_in_flight = 0
        self.billed_bytes = 0
        self.refused_hosts.clear()
        for forget in self.on_reset:
            forget()

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self._clock()

    def arrival(self) -> Arrival:
        """Note that a request comes in."""
        return Arrival(received_at=self._clock(), epoch=self.log.epoch, quotas=self.quotas)

    async def serve(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        """Answer one request in the words of `dialect`."""
        arrival = self.arrival()
        TOKENIZER.set(self._tokenizer)
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            return await self._serve(request, dialect, arrival)
        finally:
            self._in_flight -= 1

    async def _serve(self, request: web.Request, dialect: Dialect, arrival: Arrival) -> web.StreamResponse:
        body = await request.read()
        try:
            call = dialect.read(request, body)
        except RefusedError as refused:
            self._record(arrival, dialect, None, http_status=refused.reply.http_status)
            return await send(request, refused.reply)
        rejection = self._rejection(arrival, dialect, call)
        if rejection is not None:
            refusal = dialect.quota_exceeded(call, rejection, rejection.retry_delay_seconds)
            told = rejection.limit_name
            self._record(arrival, dialect, call, http_status=refusal.http_status, limit_name=told)
            return await send(request, refusal)
        # A fault is taken only by a call that the quota has let through.
        fault = self.faults.take(dialect.method, f"{call.system}\n{call.prompt}")
        preempted = preempting(fault, dialect, call) if fault else None
        if preempted is not None:
            self._record(arrival, dialect, call, http_status=preempted.http_status)
            return await send(request, preempted)
        if fault is not None and fault.kind == "hang":
            self._record(arrival, dialect, call, http_status=None)
            await until_gone(request)
            return web.Response(status=499)
        if fault is not None and fault.until is not None and not await until_released(request, fault.until):
            self._record(arrival, dialect, call, http_status=None)
            return web.Response(status=499)
        return await self._answer(request, dialect, call, arrival, fault)

    def _rejection(self, arrival: Arrival, dialect: Dialect, call: ModelCall) -> Rejection | None:
        if not dialect.is_metered:
            return None
        ledger = arrival.quotas.ledger(dialect.location)
        return ledger.admit(self._clock(), call.input_tokens, call.model)

    async def _answer(
        self,
        request: web.Request,
        dialect: Dialect,
        call: ModelCall,
        arrival: Arrival,
        fault: Fault | None,
    ) -> web.StreamResponse:
        try:
            answer = self._think(call) if dialect.is_metered else _NO_ANSWER
        except SchemaError as error:
            refusal = dialect.error(400, str(error))
            self._record(arrival, dialect, call, http_status=400)
            return await send(request, refusal)
        seconds = await self._pause(dialect, call, answer)
        reply = dialect.answer(call, answer, f"{call.prompt_sha256[:12]}-{next(self._serial)}")
        ledger = arrival.quotas.ledger(dialect.location)
        ledger.charge_output(self._clock(), answer.output_tokens, call.model)
        self._record(arrival, dialect, call, http_status=reply.http_status, answer=answer)
        return await send(request, damaged(fault, dialect, reply), fault=fault, seconds=seconds)

    def _think(self, call: ModelCall) -> Answer:
        if call.is_blocked or call.texts:
            return _NO_ANSWER
        if call.parts:
            answers = tuple(map(self._think, call.parts))
            tokens = sum(answer.output_tokens for answer in answers)
            return Answer(text="", output_tokens=tokens, is_cut=False, parts=answers)
        answer = answer_text(
            call.prompt,
            model=call.model,
            system=call.system,
            schema=call.schema,
            max_output_tokens=call.max_output_tokens,
        )
        return replace(answer, text=answer.text.strip('"')) if call.is_enum else answer

    async def _pause(self, dialect: Dialect, call: ModelCall, answer: Answer) -> float:
        """Wait for the first byte; return how long the rest of a streamed answer takes."""
        if not dialect.is_metered:
            return 0.0
        first = self._latency.first_byte_seconds(self._random)
        output = self._latency.output_seconds(answer.output_tokens)
        await asyncio.sleep(first if call.is_streamed else first + output)
        return output

    def _record(
        self,
        arrival: Arrival,
        dialect: Dialect,
        call: ModelCall | None,
        *,
        http_status: int | None,
        answer: Answer | None = None,
        limit_name: str = "",
    ) -> None:
        is_billed = answer is not None and dialect.is_metered
        self.log.append(
            RequestRecord(
                method=dialect.method,
                model=call.model if call else "",
                prompt_sha256=call.prompt_sha256 if call else "",
                texts_sha256=_each(call) if call else (),
                http_status=http_status,
                input_tokens=call.input_tokens if call and is_billed else 0,
                output_tokens=answer.output_tokens if answer and is_billed else 0,
                received_at=arrival.received_at,
                answered_at=None if http_status is None else self._clock(),
                is_billed=is_billed,
                resource=dialect.resource,
                limit_name=limit_name,
            ),
            arrival.epoch,
        )


def _each(call: ModelCall) -> tuple[str, ...]:
    return tuple(part.prompt_sha256 for part in call.parts) or tuple(map(prompt_sha256, call.texts))
