"""`/healthz`, `/readyz` and `/metrics` of a worker, on its event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from aiohttp import web

from airflow_provider_llmbeam.exceptions import JobSpecError, require_extra
from airflow_provider_llmbeam.pipeline.stream.state import StreamState
from airflow_provider_llmbeam.pipeline.stream.windows import bucket_counts
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Time without a call of the client after which a worker hangs: longer than it tries to join a cluster again.
_STUCK_SECONDS = 360.0
_PREFIX = "llmbeam_stream_"


@asynccontextmanager
async def served(spec: JobSpec, state: StreamState, address: str | None) -> AsyncIterator[None]:
    """Serves the state of a worker during the body.

    Args:
        spec: The job.
        state: The state.
        address: Host and port; `None` serves nothing.

    Raises:
        JobSpecError: The address cannot be used, or the extra `stream` is missing.
    """
    if address is None:
        yield
        return
    runner = web.AppRunner(_application(spec, state), access_log=None)
    await runner.setup()
    host, _, port = address.rpartition(":")
    try:
        await web.TCPSite(runner, host or None, int(port)).start()
    except OSError as error:
        await runner.cleanup()
        raise JobSpecError(f"`http`: {address!r} cannot be used: {error}.") from None
    try:
        yield
    finally:
        await runner.cleanup()


def _application(spec: JobSpec, state: StreamState) -> web.Application:
    with require_extra("`http`", "stream"):
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST
    registry = CollectorRegistry()
    registry.register(_Collector(f"{spec.model.type}:{spec.model.name}", state))
    started_at = time.time()

    async def healthz(_request: web.Request) -> web.Response:
        is_well = time.time() - max(started_at, state.polled_at) < _STUCK_SECONDS
        return _reply("ok" if is_well else "the client of the queue does not return", is_ok=is_well)

    async def readyz(_request: web.Request) -> web.Response:
        return _reply("ready" if state.is_ready else "no partitions are assigned yet", is_ok=state.is_ready)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes([web.get(f"/{each.__name__}", each) for each in (healthz, readyz, metrics)])
    return application


def _reply(text: str, *, is_ok: bool) -> web.Response:
    return web.Response(text=f"{text}\n", status=200 if is_ok else 503)


class _Collector:
    """What `prometheus_client` reads at each request."""

    def __init__(self, model: str, state: StreamState) -> None:
        self._model, self._state = model, state

    def collect(self) -> Iterator[Any]:
        """Yields the metrics."""
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        state, total, model = self._state, self._state.total, [self._model]
        counts: dict[str, float] = asdict(state.counts)
        counts["cost_usd"] = counts.pop("cost_nano_usd") / NANO
        del counts["dead_letter"]  # by kind below
        for name, value in counts.items():
            family = CounterMetricFamily(f"{_PREFIX}{name}", f"`{name}` of StreamCounts", labels=["model"])
            family.add_metric(model, value)
            yield family
        dead = CounterMetricFamily(f"{_PREFIX}dead_letter", "Messages without an answer", labels=["model", "kind"])
        for kind, number in total.dead_letter.items():
            dead.add_metric([*model, kind], number)
        yield dead
        now = {
            "assigned_partitions": state.assigned or 0,
            "unsettled": state.unsettled,
            "held_answers": state.held,
            "held_bytes": state.held_bytes,
            "paused": state.is_paused,
            "commit_seconds": state.commit_seconds,
        }
        for name, value in now.items():
            yield GaugeMetricFamily(f"{_PREFIX}{name}", f"`{name}` of StreamState", value=value)
        lag = GaugeMetricFamily(f"{_PREFIX}lag", "Offsets that are not committed", labels=["topic", "partition"])
        for (topic, partition), number in state.lags.items():
            lag.add_metric([topic, str(partition)], number)
        yield lag
        latency = HistogramMetricFamily(
            f"{_PREFIX}latency_seconds", "Message to committed answer", labels=["model"]
        )
        buckets = [*bucket_counts(total.latencies)]
        latency.add_metric(model, buckets, total.latency_ms / 1000)
        yield latency
