"""Metrics and spans, as the exporters of Airflow's OpenTelemetry send them to a collector."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException, Stats, TaskDeferred
from packaging.version import Version

from airflow_provider_llmbeam.integrations import opentelemetry
from airflow_provider_llmbeam.integrations.opentelemetry import (
    MAX_DURATIONS,
    count_outcome,
    durations_to_record,
)
from airflow_provider_llmbeam.pipeline.reporting.report import TracedRow, TraceReason
from airflow_provider_llmbeam.spec.traces import MAX_TRACED_ROWS
from tests.otlp import attributes, receiver

TI = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=2)
OF_TASK = {"airflow.dag_id": "d", "airflow.task_id": "t"}
OF_MODEL = OF_TASK | {
    "gen_ai.operation.name": "generate_content",
    "gen_ai.provider.name": "gcp.gemini",
    "gen_ai.request.model": "gemini-2.5-flash",
}
MANIFEST = {
    "name": "night",
    "model": "gemini:gemini-2.5-flash",
    "server": {"kind": "provider", "origin": "https://generativelanguage.googleapis.com:443"},
    "rows": {"read": 7, "answered": 5, "dead_letter": 2},
    "requests": {"sent": 9, "rejected": 3, "shed": 1, "retried": 1},
    "tokens": {"input": 100, "cached": 40, "output": 20, "reasoning": 5},
    "cost_usd": 0.25,
    "started_at": 1_700_000_000.0,
    "finished_at": 1_700_000_002.5,
    "dead_letter_by_kind": {"blocked": 2},
}
DURATIONS = {"0.5": 4, "2.0": 1}
#: Earlier versions set up the metrics of a task in another way.
on_3_3 = pytest.mark.skipif(
    Version(version("apache-airflow")) < Version("3.3"),
    reason="The process of a task here is that of Airflow 3.3.",
)
#: A task's process of Airflow 3.3 does the first two statements.
TASK = """
import json, sys
from types import SimpleNamespace
from airflow.sdk._shared.observability.metrics import stats
from airflow.sdk.observability.metrics import stats_utils
stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
from airflow import settings
from airflow_provider_llmbeam.integrations.opentelemetry import count_outcome, record_job, record_poll
manifest, durations, rows, embeds = json.load(sys.stdin)
ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=2)
with count_outcome(ti):
    record_job(manifest, durations, rows, ti, embeds=embeds)
record_poll("JobTrigger", 0.25, is_last=False)
print(json.dumps(sorted(name for name in sys.modules if name.startswith("opentelemetry.sdk"))))
"""


def run_task(environment, manifest=MANIFEST, durations=DURATIONS, rows=(), *, embeds=False):
    """Records a job in a process as a task has it; returns what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", TASK],
        input=json.dumps([manifest, durations, list(rows), embeds]),
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert "not complete" not in ended.stderr + ended.stdout
    return ended.stdout.splitlines()[-1]


def counts(collector, name):
    return [(found, point.as_int) for found, point in collector.points(name)]


@on_3_3
def test_a_job_is_sent_to_a_collector_as_metrics_and_a_span():
    with receiver() as collector:
        run_task(collector.environment())
    assert counts(collector, "airflow.llmbeam.jobs") == [(OF_TASK | {"llmbeam.outcome": "success"}, 1)]
    for name, label, expected in [
        ("rows", "llmbeam.outcome", {"answered": 5, "dead_letter": 2}),
        ("requests", "llmbeam.outcome", {"processed": 5, "rejected": 4}),
        (
            "tokens",
            "llmbeam.token.type",
            {"input": 100, "cached_input": 40, "output": 20, "reasoning_output": 5},
        ),
    ]:
        found = counts(collector, f"airflow.llmbeam.{name}")
        assert {each[label]: number for each, number in found} == expected
        assert all({**each, label: ""} == {**OF_MODEL, label: ""} for each, _ in found)
    ((found, cost),) = collector.points("llmbeam.cost")
    assert (found, cost.as_double) == (OF_MODEL, 0.25)
    for name, expected in [
        ("input_tokens", 100),
        ("output_tokens", 20),
        ("cache_read.input_tokens", 40),
        ("reasoning.output_tokens", 5),
    ]:
        found = counts(collector, f"gen_ai.client.inference.usage.{name}")
        assert found == [(OF_MODEL | {"gen_ai.token.modality": "unknown"}, expected)]
    ((found, duration),) = collector.points("gen_ai.client.inference.duration")
    assert (found, duration.count, duration.sum) == (OF_MODEL, 5, 4.0)
    assert (duration.min, duration.max) == (0.5, 2.0)
    assert collector.units["gen_ai.client.inference.duration"] == "s"
    assert counts(collector, "airflow.llmbeam.polls") == [
        ({"llmbeam.trigger": "JobTrigger", "llmbeam.outcome": "wait"}, 1)
    ]
    assert [point.sum for _, point in collector.points("airflow.llmbeam.poll.duration")] == [250]
    sent = {name.removeprefix("airflow.") for name in collector.units} & {
        metric.name for metric in opentelemetry.ALL
    }
    assert sent == {metric.name for metric in opentelemetry.ALL} - {"gen_ai.client.embeddings.duration"}
    (span,) = [span for span in collector.spans if span.name == "generate_content gemini-2.5-flash"]
    assert (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 == 2.5
    found = attributes(span)
    assert found.items() >= OF_MODEL.items()
    assert found["gen_ai.usage.input_tokens"] == 100
    assert found["gen_ai.usage.cache_read.input_tokens"] == 40
    assert found["llmbeam.cost_usd"] == 0.25
    assert found["airflow.dag_run.run_id"] == "r"


def traced(**changes):
    counts = {"attempts": 2, "rejections": 1, "input_tokens": 9, "output_tokens": 3, "cached_tokens": 4}
    facts = {"reasoning_tokens": 1, "cost_usd": 0.5, "service_tier": "flex"}
    given = {"reason": "failed", "key_hash": "ab", "began_at": 1_700_000_001.0, "ended_at": 1_700_000_002.0}
    return TracedRow(**(counts | facts | given | changes)).model_dump(mode="json")


@on_3_3
def test_rows_are_spans_below_that_of_their_job_without_their_text():
    rows = [
        traced(error="bad_request", http_status=400, request_id="r-1"),
        traced(error="template_error", began_at=0.0, ended_at=0.0),
        traced(reason="sampled", model="gemini-2.5-flash-001", finish_reason="stop"),
        traced(reason="flagged", labels={"moderation.output": "S1"}, scores={"tone": 0.5}),
    ]
    with receiver() as collector:
        run_task(collector.environment(), rows=rows)
    job, *spans = sorted(collector.spans, key=lambda span: "llmbeam.row.reason" in attributes(span))
    assert {span.parent_span_id for span in spans} == {job.span_id}
    assert {span.trace_id for span in spans} == {job.trace_id}
    assert attributes(job)["llmbeam.rows.dead_letter_without_span"] == 0
    failed, unsent, sampled, flagged = spans
    found = attributes(failed)
    assert found.items() >= {"error.type": "bad_request", "http.response.status_code": 400}.items()
    assert found.items() >= {"llmbeam.row.key_hash": "ab", "gen_ai.usage.reasoning.output_tokens": 1}.items()
    assert (found["llmbeam.service_tier"], found["llmbeam.request_id"]) == ("flex", "r-1")
    assert (failed.status.code, failed.status.message) == (2, "bad_request 400")
    assert (failed.start_time_unix_nano, failed.end_time_unix_nano) == (
        1_700_000_001 * 10**9,
        1_700_000_002 * 10**9,
    )
    assert unsent.start_time_unix_nano == unsent.end_time_unix_nano == job.start_time_unix_nano
    assert attributes(sampled)["gen_ai.response.model"] == "gemini-2.5-flash-001"
    assert sampled.status.code == 0
    assert [(event.name, attributes(event)) for event in flagged.events] == [
        (
            "gen_ai.evaluation.result",
            {"gen_ai.evaluation.name": "moderation.output", "gen_ai.evaluation.score.label": "S1"},
        ),
        ("gen_ai.evaluation.result", {"gen_ai.evaluation.name": "tone", "gen_ai.evaluation.score.value": 0.5}),
    ]


EVALUATE = """
import json, sys
from types import SimpleNamespace
from airflow import settings
from airflow_provider_llmbeam.integrations.opentelemetry import record_evaluation
found, rows = json.load(sys.stdin)
ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, try_number=1)
record_evaluation(found, rows, "https://api.openai.com:443", ti)
"""


@on_3_3
def test_the_scores_of_an_evaluation_are_events_of_its_span_and_the_marks_those_of_the_graded_rows():
    found = {"model": "openai:gpt-5-mini", "name": "night", "rows": 2, "made_at": 1_700_000_009.0}
    rows = [traced(reason="judged", scores={"tone": 0.75})]
    with receiver() as collector:
        ended = subprocess.run(
            [sys.executable, "-c", EVALUATE],
            input=json.dumps([found | {"scores": {"tone": {"score": 0.5, "low": 0.2, "high": 0.8}}}, rows]),
            env=os.environ | collector.environment(),
            capture_output=True,
            text=True,
        )
    assert ended.returncode == 0, ended.stderr
    job, row = sorted(collector.spans, key=lambda span: "llmbeam.row.reason" in attributes(span))
    assert row.parent_span_id == job.span_id
    marks = [attributes(event)["gen_ai.evaluation.score.value"] for span in (job, row) for event in span.events]
    assert marks == [0.5, 0.75]
    assert attributes(row)["openai.response.service_tier"] == "flex"
    assert job.start_time_unix_nano == row.start_time_unix_nano


@on_3_3
def test_a_job_with_as_many_spans_as_it_may_have_loses_none():
    rows = [
        traced(reason=reason, key_hash=f"{number:04}", error="timeout" if reason == "failed" else "")
        for reason in get_args(TraceReason)
        for number in range(MAX_TRACED_ROWS)
    ]
    with receiver() as collector:
        run_task(collector.environment(), rows=rows)
    assert len(collector.spans) == 1 + len(rows) == 2001


@pytest.mark.full
@on_3_3
def test_a_job_that_embeds_has_durations_of_embeddings_and_no_counters_of_inference():
    with receiver() as collector:
        run_task(collector.environment(), embeds=True)
    assert collector.points("gen_ai.client.embeddings.duration")
    assert not [name for name in collector.units if name.startswith("gen_ai.client.inference")]


@pytest.mark.full
@on_3_3
def test_a_job_without_a_price_has_no_cost():
    with receiver() as collector:
        run_task(collector.environment(), MANIFEST | {"cost_usd": None})
    assert collector.points("llmbeam.cost") == []
    assert "llmbeam.cost_usd" not in attributes(collector.spans[0])


@pytest.mark.full
@on_3_3
def test_without_opentelemetry_nothing_of_its_sdk_for_metrics_is_imported():
    loaded = json.loads(run_task({}))
    assert [name for name in loaded if name.startswith("opentelemetry.sdk.metrics")] == []


@pytest.mark.full
@on_3_3
def test_a_collector_that_is_not_there_fails_no_task():
    with receiver() as collector:
        environment = collector.environment()
    run_task(environment | {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"})


def test_a_job_with_many_requests_records_a_part_of_them_in_the_same_proportions():
    few = durations_to_record(DURATIONS)
    assert few == [(0.5, 4), (2.0, 1)]
    many = durations_to_record({"0.5": 9 * MAX_DURATIONS, "1.0": MAX_DURATIONS, "7.0": 1})
    assert many == [(0.5, 90_000), (1.0, 10_000), (7.0, 1)]
    assert durations_to_record({}) == []


@pytest.fixture
def counted(monkeypatch):
    """What is counted by Airflow's statistics."""
    found = []
    monkeypatch.setattr(Stats, "incr", lambda name, count, *, tags: found.append((name, count, tags)))
    return found


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("planted text"), {"llmbeam.outcome": "failed", "error.type": "ValueError"}),
        (AirflowSkipException("no rows"), {"llmbeam.outcome": "skipped"}),
    ],
)
def test_a_failed_job_is_counted_by_the_type_of_its_error(counted, error, expected):
    with pytest.raises(type(error)), count_outcome(TI):
        raise error
    assert counted == [("llmbeam.jobs", 1, OF_TASK | expected)]


def test_a_deferred_task_is_not_counted(counted):
    with pytest.raises(TaskDeferred), count_outcome(TI):
        raise TaskDeferred(trigger=None, method_name="m")
    assert counted == []


def test_an_error_of_the_statistics_does_not_reach_the_task(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no statistics")

    monkeypatch.setattr(Stats, "incr", fail)
    monkeypatch.setattr(Stats, "timing", fail)
    with count_outcome(TI):
        opentelemetry.record_job(MANIFEST, DURATIONS, (), TI, embeds=False)
    opentelemetry.record_job({}, {}, (), TI, embeds=False)
    opentelemetry.record_poll("T", 1.0, is_last=True)


DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize(
    ("model", "origin", "provider"),
    [
        ("gemini:gemini-2.5-flash", "https://generativelanguage.googleapis.com:443", "gcp.gemini"),
        ("gemini:gemini-2.5-flash", "https://europe-west1-aiplatform.googleapis.com:443", "gcp.vertex_ai"),
        ("gemini:gemini-2.5-flash", "https://private.example:443", "gcp.gen_ai"),
        ("vertex_endpoint:google/gemma-3-4b-it", "https://1.prediction.vertexai.goog:443", "gcp.vertex_ai"),
        ("openai:gpt-5-mini", "https://api.openai.com:443", "openai"),
        ("openai:Qwen/Qwen3-4B", "http://vllm:8000", "openai_compatible"),
        ("echo:echo", "", "echo"),
    ],
)
def test_the_provider_follows_from_the_type_of_the_model_and_its_server(model, origin, provider):
    manifest = {"model": model, "server": {"kind": "provider", "origin": origin}}
    found = opentelemetry.model_attributes(manifest, embeds=False)
    assert found[opentelemetry.PROVIDER] == provider
    assert found[opentelemetry.MODEL] == model.partition(":")[2]


@pytest.mark.parametrize(
    ("model", "embeds", "operation"),
    [("gemini:a", False, "generate_content"), ("gemini:a", True, "embeddings"), ("openai:a", False, "chat")],
)
def test_the_operation_follows_from_the_task(model, embeds, operation):
    manifest = {"model": model, "server": {"origin": ""}}
    assert opentelemetry.model_attributes(manifest, embeds=embeds)[opentelemetry.OPERATION] == operation


def test_no_attribute_identifies_a_run():
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", try_number=3, map_index=7)
    assert opentelemetry.task_attributes(ti) == {"airflow.dag_id": "d", "airflow.task_id": "t"}


@pytest.mark.parametrize("metric", opentelemetry.ALL, ids=lambda metric: metric.name)
def test_the_documentation_has_the_unit_and_the_attributes_of_each_metric(metric):
    (line,) = [
        line
        for line in (DOCS / "reference/telemetry.md").read_text().splitlines()
        if line.startswith(f"| `{metric.name}`")
    ]
    _, kind, unit, attributes, *_ = [cell.strip() for cell in line.strip("|").split("|")]
    assert (kind, unit.strip("`")) == (metric.kind, metric.unit)
    assert tuple(re.findall(r"`([^`]+)`", attributes)) == tuple(
        dict.fromkeys(_short(name) for name in metric.attributes)
    )


def test_the_dashboard_asks_for_metrics_that_exist():
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    exported = {_prometheus(metric) for metric in opentelemetry.ALL}
    asked = {
        found
        for query in queries
        for found in re.findall(r"\b(?:airflow_llmbeam|llmbeam|gen_ai_client)\w+(?=[\[{])", query)
    }
    assert asked <= exported, asked - exported
    assert len(asked) >= 7
    assert dashboard["title"]


def _short(name):
    return "*model*" if name in (opentelemetry.OPERATION, opentelemetry.PROVIDER, opentelemetry.MODEL) else name


def _prometheus(metric):
    """Returns the name under which Prometheus has a metric; units in braces are not part of it."""
    name = f"airflow.{metric.name}" if metric.through == "stats" else metric.name
    unit = {"s": "_seconds", "ms": "_milliseconds"}.get(metric.unit, "")
    return name.replace(".", "_") + unit + ("_total" if metric.kind == "counter" else "")
