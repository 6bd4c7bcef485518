"""What a worker shows over HTTP."""

import asyncio
import socket
import time

import httpx
import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.stream.http import served
from airflow_provider_llmbeam.pipeline.stream.state import StreamCounts, StreamState


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def fetched(state, address, *paths):
    async def fetch():
        async with served(state, address), httpx.AsyncClient(base_url=f"http://{address}") as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(fetch())


def test_a_worker_is_ready_once_its_group_has_assigned_partitions_or_none(address):
    (before,) = fetched(StreamState(), address, "/readyz")
    (after,) = fetched(StreamState(assigned=0), address, "/readyz")
    assert (before.status_code, after.status_code) == (503, 200)


def test_a_worker_whose_client_hangs_is_not_healthy(address, monkeypatch):
    started, hanging = StreamState(), StreamState(polled_at=time.time())
    assert fetched(started, address, "/healthz")[0].status_code == 200
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.stream.http._STUCK_SECONDS", 0.0)
    assert fetched(hanging, address, "/healthz")[0].status_code == 503


def test_the_metrics_have_all_counts_and_the_latency(address):
    counts = StreamCounts(consumed=7, cost_nano_usd=1_500_000_000)
    state = StreamState(counts=counts, assigned=3, lag=12)
    state.latencies.extend([0.1, 0.3])
    (reply,) = fetched(state, address, "/metrics")
    lines = reply.text.splitlines()
    assert "llmbeam_stream_consumed_total 7.0" in lines
    assert "llmbeam_stream_cost_usd_total 1.5" in lines
    assert "llmbeam_stream_assigned_partitions 3.0" in lines
    assert "llmbeam_stream_lag 12.0" in lines
    assert 'llmbeam_stream_latency_seconds{quantile="0.5"} 0.2' in lines
    assert reply.headers["content-type"].startswith("text/plain; version=")


def test_an_address_that_is_taken_is_refused(address):
    async def serve_twice():
        async with served(StreamState(), address), served(StreamState(), address):
            pass

    with pytest.raises(JobSpecError, match=r"`http`: '127\.0\.0\.1:\d+' cannot be used"):
        asyncio.run(serve_twice())
