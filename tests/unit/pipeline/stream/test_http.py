"""What a worker shows over HTTP."""

import asyncio
import json
import math
import re
import socket
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.reporting.time_series import latency_class
from airflow_provider_llmbeam.pipeline.stream.http import served
from airflow_provider_llmbeam.pipeline.stream.state import StreamCounts, StreamState
from airflow_provider_llmbeam.pipeline.stream.windows import Window
from airflow_provider_llmbeam.spec import JobSpec

SPEC = JobSpec.parse(
    {
        "name": "stream",
        "source": {"type": "kafka", "topic": "q", "bootstrap_servers": "h:1"},
        "prompt": {"template": "{{ row.text }}"},
        "model": {"type": "echo"},
        "sink": {"type": "kafka", "topic": "a", "bootstrap_servers": "h:1"},
        "state_uri": "/tmp/llmbeam-stream-test/",
    }
)


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def fetched(state, address, *paths):
    async def fetch():
        async with served(SPEC, state, address), httpx.AsyncClient(base_url=f"http://{address}") as client:
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


@pytest.fixture
def metrics(address):
    """Returns what a worker with something in every metric shows."""
    counts = StreamCounts(consumed=7, committed=2, dead_letter=1, cost_nano_usd=1_500_000_000, rejections=3)
    state = StreamState(counts=counts, assigned=3, lags={("questions", 0): 12, ("questions", 1): 0})
    latencies = Counter({latency_class(0.1): 2, latency_class(2.0): 1, latency_class(900.0): 1})
    state.total = Window(answers=2, dead_letter=Counter(blocked=1), latencies=latencies, latency_ms=902_200)
    (reply,) = fetched(state, address, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def test_the_metrics_have_all_counts_by_model_lag_by_partition_and_dead_letters_by_kind(metrics):
    model = ("model", "echo:echo")
    assert metrics["llmbeam_stream_consumed_total", model] == 7
    assert metrics["llmbeam_stream_rejections_total", model] == 3
    assert metrics["llmbeam_stream_cost_usd_total", model] == 1.5
    assert metrics["llmbeam_stream_dead_letter_total", ("kind", "blocked"), model] == 1
    assert metrics["llmbeam_stream_lag", ("partition", "0"), ("topic", "questions")] == 12
    assert metrics["llmbeam_stream_assigned_partitions",] == 3


def test_the_latency_is_a_histogram_whose_buckets_of_several_workers_add_up(metrics):
    buckets = {
        float(labels["le"]): value
        for (name, *pairs), value in metrics.items()
        if name == "llmbeam_stream_latency_seconds_bucket" and (labels := dict(pairs))
    }
    assert buckets[math.inf] == 4
    assert max(value for bound, value in buckets.items() if bound < 0.1) == 0
    assert max(value for bound, value in buckets.items() if bound < 1.9) == 2
    assert max(value for bound, value in buckets.items() if bound < math.inf) == 3
    assert metrics["llmbeam_stream_latency_seconds_sum", ("model", "echo:echo")] == 902.2


def test_the_dashboard_asks_for_metrics_that_a_worker_shows(metrics):
    dashboard = json.loads((Path(__file__).parents[4] / "docs/grafana-stream-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {name: {label for label, _ in labels} for name, *labels in metrics}
    asked = set()
    for query in queries:
        grouped = {*re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query)))}
        for name in re.findall(r"llmbeam_\w+", query):
            asked.add(name)
            assert grouped <= shown[name] | {"instance"}, query
    assert len(asked) >= 14
    (variable,) = [each for each in dashboard["templating"]["list"] if each["name"] == "job"]
    assert {*re.findall(r"llmbeam_\w+", variable["query"])} <= shown.keys()


def test_an_address_that_is_taken_is_refused(address):
    async def serve_twice():
        async with served(SPEC, StreamState(), address), served(SPEC, StreamState(), address):
            pass

    with pytest.raises(JobSpecError, match=r"`http`: '127\.0\.0\.1:\d+' cannot be used"):
        asyncio.run(serve_twice())
