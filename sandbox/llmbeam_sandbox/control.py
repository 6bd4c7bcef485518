"""The control API of the sandbox, for other processes: health, statistics, bills, faults, settings, reset."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict
from typing import Any, TypedDict

from aiohttp import web

from llmbeam_sandbox.core.faults import Fault, Faults
from llmbeam_sandbox.core.records import RequestRecord
from llmbeam_sandbox.core.responses import Reply, json_reply, read_object
from llmbeam_sandbox.services import Services

_FAULT_KEYS = frozenset({"method", "fault", "every", "contains", "times"})


class MethodStats(TypedDict):
    """Statistics of one method; requests without an answer count under "none" in `by_http_status`."""

    calls: int
    by_http_status: dict[str, int]
    faults_left: int


class Stats(TypedDict):
    """Statistics since the start of the sandbox, or since the last reset. Times in seconds since the epoch.

    `dataflow_jobs` counts jobs by state, e.g. {"RUNNING": 1}. `bill` is that of accelerators: charges that are
    `running`, past `lines`, `gpu_minutes`, `usd`, `usd_per_hour`.
    """

    methods: dict[str, MethodStats]
    billed_answers: int
    input_tokens: int
    output_tokens: int
    max_in_flight: int
    storage_bytes_received: int
    storage_bytes_sent: int
    bigquery_bytes_billed: int
    dataflow_jobs: dict[str, int]
    bill: dict[str, Any]
    refused_hosts: dict[str, int]
    quota: dict[str, Any]
    first_request_at: float | None
    last_request_at: float | None


def stats(services: Services) -> Stats:
    """Returns the statistics; tokens are billed ones."""
    backend, models = services.backend, services.models
    records = list(backend.log)
    arrivals = [record.received_at for record in records]
    stored = [record for record in records if record.method.startswith("storage.")]
    left = backend.faults.left()
    return Stats(
        methods={
            method: _method_stats([record for record in records if record.method == method], left.get(method, 0))
            for method in backend.methods.names
        },
        billed_answers=sum(record.is_billed for record in records),
        storage_bytes_received=sum(record.received_bytes for record in stored),
        storage_bytes_sent=sum(record.sent_bytes for record in stored),
        bigquery_bytes_billed=services.bigquery.billed_bytes,
        dataflow_jobs=services.dataflow.by_state(),
        bill=services.bill.fields(),
        refused_hosts=dict(backend.refused_hosts),
        input_tokens=sum(record.input_tokens for record in records),
        output_tokens=sum(record.output_tokens for record in records),
        max_in_flight=models.max_in_flight,
        quota=asdict(models.quota),
        first_request_at=min(arrivals, default=None),
        last_request_at=max(arrivals, default=None),
    )


def add_fault(faults: Faults, order: dict[str, Any]) -> None:
    """Adds the fault of a `POST /sandbox/faults`.

    Args:
        faults: Faults of the sandbox.
        order: Body of the request: `method`, `fault` (the fields of `Fault`) and, for a rule, either `every` or
            `contains` with an optional `times`.

    Raises:
        ValueError: A key is missing or unknown, or a value is out of bounds.
    """
    unknown = order.keys() - _FAULT_KEYS
    if unknown or not {"method", "fault"} <= order.keys():
        raise ValueError(f"Give `method`, `fault`, and maybe `every`, `contains`, `times`; got {sorted(order)}.")
    try:
        fault = Fault(**order["fault"])
    except TypeError as error:
        raise ValueError(f"`fault` must hold the fields of a fault; got {order['fault']!r}. {error}") from error
    if "every" in order:
        faults.every(order["method"], int(order["every"]), fault)
    elif "contains" in order:
        faults.when(order["method"], order["contains"], fault, order.get("times"))
    else:
        faults.queue(order["method"], fault)


def routes(services: Services) -> list[web.RouteDef]:
    """Returns the routes of the control API."""
    backend = services.backend

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def get_stats(request: web.Request) -> web.Response:
        return _response(json_reply(stats(services)))

    async def get_bill(request: web.Request) -> web.Response:
        try:
            after = float(request.query.get("after", "0"))
        except ValueError:
            error = f"`after` must be seconds since the epoch; got {request.query['after']!r}."
            return _response(json_reply({"error": error}, http_status=400))
        return _response(json_reply(services.bill.fields(after)))

    async def get_token_bill(request: web.Request) -> web.Response:
        # Rows that are due by the clock are answered first, off the event loop.
        return _response(json_reply(await asyncio.to_thread(services.models.token_bill.fields)))

    async def post_batch(request: web.Request) -> web.Response:
        try:
            services.batches.change(**read_object(await request.read()))
        except (ValueError, TypeError) as error:
            return _response(json_reply({"error": str(error)}, http_status=400))
        return _response(json_reply(asdict(services.batches.settings)))

    async def post_faults(request: web.Request) -> web.Response:
        try:
            add_fault(backend.faults, read_object(await request.read()))
        except (ValueError, TypeError) as error:
            return _response(json_reply({"error": str(error)}, http_status=400))
        return _response(json_reply({"faults_left": backend.faults.left()}))

    async def post_reset(request: web.Request) -> web.Response:
        backend.reset()
        return _response(json_reply({}))

    return [
        web.get("/", health),
        web.get("/sandbox/stats", get_stats),
        web.get("/sandbox/bill", get_bill),
        web.get("/sandbox/token-bill", get_token_bill),
        *backend.access.guarded(
            [
                web.post("/sandbox/batch", post_batch),
                web.post("/sandbox/faults", post_faults),
                web.post("/sandbox/reset", post_reset),
            ]
        ),
    ]


def _method_stats(records: list[RequestRecord], faults_left: int) -> MethodStats:
    statuses = Counter(str(record.http_status or "none") for record in records)
    return MethodStats(calls=len(records), by_http_status=dict(statuses), faults_left=faults_left)


def _response(reply: Reply) -> web.Response:
    return web.Response(status=reply.http_status, body=reply.body, headers=reply.all_headers())
