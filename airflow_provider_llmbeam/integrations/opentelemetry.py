"""Metrics and spans of a job, through Airflow's statistics and its OpenTelemetry providers; nothing raises.

Source of the names that begin with `gen_ai.`, and of the bounds of the buckets, read on 2026-11-28:
open-telemetry/semantic-conventions-genai, docs/gen-ai/client-inference.md at 024a4f94, client-embeddings.md at
88eccb15, gen-ai-token-metrics.md at 066d4a7f, model/gen-ai/events.yaml at 03870916: in development, without a
release. docs/reference/telemetry.md lists all metrics.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import AirflowSkipException, Stats, conf

log = logging.getLogger(__name__)

#: Maximum number of durations that one job records, each of which takes 14 µs (measured with the SDK 1.45). A job
#: with more requests records this many, in the proportions of its own.
MAX_DURATIONS = 100_000
#: Longest time that a task waits for the collector, in milliseconds: it may end before its next export.
_FLUSH_MILLISECONDS = 5_000
_SCOPE = "airflow_provider_llmbeam"
#: Upper bounds of the buckets in seconds; Airflow 3.3 has exponential buckets instead.
_SECOND_BOUNDS = [0.01 * 2**power for power in range(14)]

DAG_ID, TASK_ID = "airflow.dag_id", "airflow.task_id"
MODEL, PROVIDER, OPERATION = "gen_ai.request.model", "gen_ai.provider.name", "gen_ai.operation.name"
TOKEN_TYPE, MODALITY, ERROR_TYPE = "llmbeam.token.type", "gen_ai.token.modality", "error.type"
OUTCOME, TRIGGER = "llmbeam.outcome", "llmbeam.trigger"

_OF_TASK = (DAG_ID, TASK_ID)
_OF_MODEL = (*_OF_TASK, OPERATION, PROVIDER, MODEL)


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: Its name. Airflow's statistics put their own prefix, by default `airflow.`, before it.
        through: `stats`: Airflow's statistics, which StatsD, Datadog and OpenTelemetry receive; `otel`: the
            OpenTelemetry provider of Airflow alone.
        kind: Kind of instrument.
        unit: Its unit, as OpenTelemetry writes units.
        attributes: Names of its attributes.
    """

    name: str
    through: Literal["stats", "otel"]
    kind: Literal["counter", "histogram", "timer"]
    unit: str
    attributes: tuple[str, ...]


JOBS = Metric("llmbeam.jobs", "stats", "counter", "{job}", (*_OF_TASK, OUTCOME, ERROR_TYPE))
ROWS = Metric("llmbeam.rows", "stats", "counter", "{row}", (*_OF_MODEL, OUTCOME))
REQUESTS = Metric("llmbeam.requests", "stats", "counter", "{request}", (*_OF_MODEL, OUTCOME))
TOKENS = Metric("llmbeam.tokens", "stats", "counter", "{token}", (*_OF_MODEL, TOKEN_TYPE))
POLLS = Metric("llmbeam.polls", "stats", "counter", "{poll}", (TRIGGER, OUTCOME))
POLL_DURATION = Metric("llmbeam.poll.duration", "stats", "timer", "ms", (TRIGGER,))
COST = Metric("llmbeam.cost", "otel", "counter", "{USD}", _OF_MODEL)
#: Kinds of tokens as OpenTelemetry names them, by their names here; the last two are parts of the others.
_USAGE_NAMES = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cache_read.input_tokens",
    "reasoning": "reasoning.output_tokens",
}
USAGE = {
    field: Metric(f"gen_ai.client.inference.usage.{name}", "otel", "counter", "{token}", (*_OF_MODEL, MODALITY))
    for field, name in _USAGE_NAMES.items()
}
INFERENCE_DURATION = Metric("gen_ai.client.inference.duration", "otel", "histogram", "s", _OF_MODEL)
EMBEDDINGS_DURATION = Metric("gen_ai.client.embeddings.duration", "otel", "histogram", "s", _OF_MODEL)

ALL = (
    *(JOBS, ROWS, REQUESTS, TOKENS, POLLS, POLL_DURATION, COST),
    *USAGE.values(),
    *(INFERENCE_DURATION, EMBEDDINGS_DURATION),
)


def record_job(
    manifest: Mapping[str, Any],
    durations: Mapping[str, int],
    rows: Sequence[Mapping[str, Any]],
    ti: Any,
    *,
    embeds: bool,
) -> None:
    """Records a job that has ended.

    Args:
        manifest: What it reported.
        durations: Number of its requests by their duration in seconds, see `Report.latency_counts`.
        rows: Rows that become spans, see `Report.traced_rows`.
        ti: Task instance.
        embeds: Whether it requested vectors.
    """
    with _no_errors():
        attributes = task_attributes(ti) | model_attributes(manifest, embeds=embeds)
        _count_job(manifest, attributes)
        if conf.getboolean("metrics", "otel_on", fallback=False):
            _measure(manifest, durations, attributes, embeds=embeds)
        if _exports_traces():
            started_at, finished_at = manifest["started_at"], manifest["finished_at"]
            attributes |= _server_attributes(manifest["server"]["origin"])
            of_job = attributes | _job_attributes(manifest, rows, ti)
            _trace(of_job, attributes, (started_at, finished_at), {}, rows)


def record_evaluation(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], origin: str, ti: Any) -> None:
    """Records an evaluation: a span with an event for each score, and the rows that a judge has graded below it.

    Args:
        found: Manifest of the evaluation.
        rows: The rows, see `Report.traced_rows`.
        origin: Scheme, host and port of the server.
        ti: Task instance.
    """
    with _no_errors():
        if _exports_traces():
            manifest = {"model": found["model"], "server": {"origin": origin}}
            attributes = (
                task_attributes(ti) | model_attributes(manifest, embeds=False) | _server_attributes(origin)
            )
            of_job = attributes | {"llmbeam.job.name": found["name"], "llmbeam.rows.read": found["rows"]}
            ended_at = found["made_at"]
            started_at = min([ended_at, *(row["began_at"] for row in rows if row["began_at"])])
            scores = {name: score["score"] for name, score in found["scores"].items()}
            _trace(of_job, attributes, (started_at, ended_at), scores, rows)


def current_trace_id() -> str:
    """Returns the trace of the running task, in hexadecimal digits; empty where Airflow exports none."""
    if not _exports_traces():
        return ""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else ""


@contextmanager
def count_outcome(ti: Any) -> Iterator[None]:
    """Counts a job, and the type of its error if it fails.

    A task that is deferred has not ended. One that is killed or times out is not counted: its process ends.
    """
    attributes = task_attributes(ti)
    try:
        yield
    except AirflowSkipException:
        _count(JOBS, 1, attributes | {OUTCOME: "skipped"})
        raise
    except Exception as error:
        _count(JOBS, 1, attributes | {OUTCOME: "failed", ERROR_TYPE: type(error).__name__})
        raise
    _count(JOBS, 1, attributes | {OUTCOME: "success"})


def record_poll(trigger: str, seconds: float, *, is_last: bool) -> None:
    """Records one poll of a trigger.

    Args:
        trigger: Class of the trigger.
        seconds: Duration of the poll.
        is_last: Whether the poll ended the wait.
    """
    _count(POLLS, 1, {TRIGGER: trigger, OUTCOME: "result" if is_last else "wait"})
    with _no_errors():
        Stats.timing(POLL_DURATION.name, seconds * 1000, tags={TRIGGER: trigger})


def task_attributes(ti: Any) -> dict[str, str]:
    """Returns the attributes of a task. Ids of runs are left out: each would make a series of its own."""
    return {DAG_ID: ti.dag_id, TASK_ID: ti.task_id}


def model_attributes(manifest: Mapping[str, Any], *, embeds: bool) -> dict[str, str]:
    """Returns the attributes of a job's model.

    Args:
        manifest: What the job reported.
        embeds: Whether it requested vectors.
    """
    kind, _, name = manifest["model"].partition(":")
    operation = "embeddings" if embeds else "generate_content" if kind == "gemini" else "chat"
    return {OPERATION: operation, PROVIDER: _provider(kind, manifest["server"]["origin"]), MODEL: name}


def _count_job(manifest: Mapping[str, Any], attributes: dict[str, str]) -> None:
    rows, requests, tokens = manifest["rows"], manifest["requests"], manifest["tokens"]
    _count(ROWS, rows["answered"], attributes | {OUTCOME: "answered"})
    _count(ROWS, rows["dead_letter"], attributes | {OUTCOME: "dead_letter"})
    refused = requests["rejected"] + requests.get("shed", 0)
    _count(REQUESTS, requests["sent"] - refused, attributes | {OUTCOME: "processed"})
    _count(REQUESTS, refused, attributes | {OUTCOME: "rejected"})
    names = {"input": "input", "output": "output", "cached": "cached_input", "reasoning": "reasoning_output"}
    for field, name in names.items():
        _count(TOKENS, tokens.get(field, 0), attributes | {TOKEN_TYPE: name})


def _measure(
    manifest: Mapping[str, Any], durations: Mapping[str, int], attributes: dict[str, str], *, embeds: bool
) -> None:
    from opentelemetry import metrics

    # The first counter has made Airflow set the provider; a task's process sets it again after a fork.
    provider = metrics.get_meter_provider()
    meter = provider.get_meter(_SCOPE)
    if manifest["cost_usd"] is not None:
        cost = meter.create_counter(COST.name, unit=COST.unit, description="Cost of the tokens.")
        cost.add(manifest["cost_usd"], attributes)
    for field, metric in {} if embeds else USAGE.items():
        counter = meter.create_counter(metric.name, unit=metric.unit, description="Billed tokens.")
        # Providers do not break all usage down by modality.
        counter.add(manifest["tokens"].get(field, 0), attributes | {MODALITY: "unknown"})
    metric = EMBEDDINGS_DURATION if embeds else INFERENCE_DURATION
    duration = meter.create_histogram(
        metric.name,
        unit=metric.unit,
        description="Duration of a request.",
        explicit_bucket_boundaries_advisory=_SECOND_BOUNDS,
    )
    for seconds, number in durations_to_record(durations):
        for _ in range(number):
            duration.record(seconds, attributes)
    if hasattr(provider, "force_flush"):
        provider.force_flush(_FLUSH_MILLISECONDS)


def durations_to_record(durations: Mapping[str, int]) -> list[tuple[float, int]]:
    """Returns the durations of requests, in seconds, and how often each is recorded."""
    share = min(1.0, MAX_DURATIONS / max(1, sum(durations.values())))
    return [(float(seconds), max(1, round(number * share))) for seconds, number in durations.items()]


def _trace(
    of_job: Mapping[str, Any],
    of_row: Mapping[str, Any],
    times: tuple[float, float],
    scores: Mapping[str, float],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Makes the span of a job, and those of rows below it.

    Args:
        of_job: Attributes of the span.
        of_row: Those that all spans of rows have.
        times: Unix times of its begin and end.
        scores: Results of an evaluation.
        rows: The rows.
    """
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    tracer = provider.get_tracer(_SCOPE)
    name, kind = f"{of_job[OPERATION]} {of_job[MODEL]}", trace.SpanKind.CLIENT
    # A child of Airflow's span of `execute`, although the job began before a task that was deferred resumed.
    span = tracer.start_span(name, kind=kind, attributes=dict(of_job), start_time=_nanoseconds(times[0]))
    below = trace.set_span_in_context(span)
    for row in rows:
        # A row that this run has not sent, such as one without a key, has no time of its own.
        began, ended = (row["began_at"], row["ended_at"]) if row["ended_at"] else (times[0], times[0])
        each = tracer.start_span(
            name,
            below,
            kind,
            attributes={**of_row, **_row_attributes(row, of_row[PROVIDER])},
            start_time=_nanoseconds(began),
        )
        if row["error"]:
            reason = row["message"] or " ".join(map(str, filter(None, (row["error"], row["http_status"]))))
            each.set_status(trace.Status(trace.StatusCode.ERROR, reason))
        _add_results(each, row["labels"], "label")
        _add_results(each, row["scores"], "value")
        each.end(_nanoseconds(ended))
    _add_results(span, scores, "value")
    span.end(_nanoseconds(times[1]))
    if hasattr(provider, "force_flush"):
        provider.force_flush(_FLUSH_MILLISECONDS)


def _add_results(span: Any, results: Mapping[str, str | float], kind: str) -> None:
    """Adds the results of evaluations as events of a span: Airflow exports no log events of OpenTelemetry."""
    for name, result in results.items():
        fields = {"gen_ai.evaluation.name": name, f"gen_ai.evaluation.score.{kind}": result}
        span.add_event("gen_ai.evaluation.result", fields)


def _job_attributes(manifest: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], ti: Any) -> dict[str, Any]:
    counts, failed = manifest["rows"], sum(row["reason"] == "failed" for row in rows)
    return _without_none(
        {
            "airflow.dag_run.run_id": ti.run_id,
            "airflow.task_instance.map_index": ti.map_index,
            "airflow.task_instance.try_number": ti.try_number,
            **{f"gen_ai.usage.{_USAGE_NAMES[field]}": manifest["tokens"].get(field, 0) for field in _USAGE_NAMES},
            "llmbeam.cost_usd": manifest["cost_usd"],
            "llmbeam.job.name": manifest["name"],
            "llmbeam.requests": manifest["requests"]["sent"],
            "llmbeam.rows.answered": counts["answered"],
            "llmbeam.rows.dead_letter": counts["dead_letter"],
            "llmbeam.rows.read": counts["read"],
            "llmbeam.rows.dead_letter_without_span": counts["dead_letter"] - failed,
            "llmbeam.service_tiers": sorted(manifest.get("service_tiers", {})),
            "llmbeam.report_uri": manifest.get("report_uri"),
        }
    )


def _row_attributes(row: Mapping[str, Any], provider: str) -> dict[str, Any]:
    answer = row["answer"]
    message = {"role": "assistant", "parts": [{"type": "text", "content": answer}]}
    tier = "openai.response.service_tier" if provider == "openai" else "llmbeam.service_tier"
    found = {
        ERROR_TYPE: row["error"] or None,
        "gen_ai.output.messages": None if answer is None else json.dumps([message]),
        "gen_ai.response.finish_reasons": [row["finish_reason"]] if row["finish_reason"] else None,
        "gen_ai.response.model": row["model"] or None,
        **{f"gen_ai.usage.{_USAGE_NAMES[field]}": row[f"{field}_tokens"] for field in _USAGE_NAMES},
        "http.response.status_code": row["http_status"],
        "llmbeam.cost_usd": row["cost_usd"],
        "llmbeam.request_id": row["request_id"],
        "llmbeam.requests": row["attempts"] + row["rejections"],
        "llmbeam.row": row["row"],
        "llmbeam.row.key_hash": row["key_hash"],
        "llmbeam.row.reason": row["reason"],
        tier: row["service_tier"],
    }
    return _without_none(found)


def _server_attributes(origin: str) -> dict[str, Any]:
    server = urlsplit(origin)
    return _without_none({"server.address": server.hostname, "server.port": server.port})


def _without_none(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _exports_traces() -> bool:
    return bool(conf.getboolean("traces", "otel_on", fallback=False))


def _count(metric: Metric, number: int, attributes: dict[str, str]) -> None:
    with _no_errors():
        if number:
            Stats.incr(metric.name, number, tags=attributes)


@contextmanager
def _no_errors() -> Iterator[None]:
    try:
        yield
    except Exception:
        log.warning("The metrics of this task are not complete.", exc_info=True)


def _provider(kind: str, origin: str) -> str:
    host = urlsplit(origin).hostname or ""
    if kind == "vertex_endpoint" or "aiplatform" in host:
        return "gcp.vertex_ai"
    if kind == "gemini":
        # The well-known name of an unknown address of Google's API, such as a private one or the sandbox.
        return "gcp.gemini" if host == "generativelanguage.googleapis.com" else "gcp.gen_ai"
    return "openai_compatible" if kind == "openai" and host != "api.openai.com" else kind
