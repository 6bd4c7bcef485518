"""Metrics and the span of a job, through Airflow's statistics and its OpenTelemetry providers; nothing raises.

Source of the names that begin with `gen_ai.`, and of the bounds of the buckets: OpenTelemetry semantic conventions
for generative AI, semconv 1.41. docs/metrics.md lists all metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
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
#: Upper bounds of the buckets, in tokens and in seconds; Airflow 3.3 has exponential buckets instead.
_TOKEN_BOUNDS = [4**power for power in range(14)]
_SECOND_BOUNDS = [0.01 * 2**power for power in range(14)]

DAG_ID, TASK_ID = "airflow.dag_id", "airflow.task_id"
MODEL, PROVIDER, OPERATION = "gen_ai.request.model", "gen_ai.provider.name", "gen_ai.operation.name"
TOKEN_TYPE, ERROR_TYPE = "gen_ai.token.type", "error.type"
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
TOKEN_USAGE = Metric("gen_ai.client.token.usage", "otel", "histogram", "{token}", (*_OF_MODEL, TOKEN_TYPE))
OPERATION_DURATION = Metric("gen_ai.client.operation.duration", "otel", "histogram", "s", _OF_MODEL)

ALL = (JOBS, ROWS, REQUESTS, TOKENS, POLLS, POLL_DURATION, COST, TOKEN_USAGE, OPERATION_DURATION)


def record_job(manifest: Mapping[str, Any], durations: Mapping[str, int], ti: Any, *, embeds: bool) -> None:
    """Records a job that has ended.

    Args:
        manifest: What it reported.
        durations: Number of its requests by their duration in seconds, see `Report.latency_counts`.
        ti: Task instance.
        embeds: Whether it requested vectors.
    """
    with _no_errors():
        attributes = task_attributes(ti) | model_attributes(manifest, embeds=embeds)
        _count_job(manifest, attributes)
        if conf.getboolean("metrics", "otel_on", fallback=False):
            _measure(manifest, durations, attributes)
        if conf.getboolean("traces", "otel_on", fallback=False):
            _trace(manifest, attributes, ti)


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
    for kind, number in _token_types(tokens).items():
        _count(TOKENS, number, attributes | {TOKEN_TYPE: kind})
    _count(TOKENS, tokens.get("cached", 0), attributes | {TOKEN_TYPE: "cached_input"})


def _measure(manifest: Mapping[str, Any], durations: Mapping[str, int], attributes: dict[str, str]) -> None:
    from opentelemetry import metrics

    # The first counter has made Airflow set the provider; a task's process sets it again after a fork.
    provider = metrics.get_meter_provider()
    meter = provider.get_meter(_SCOPE)
    if manifest["cost_usd"] is not None:
        cost = meter.create_counter(COST.name, unit=COST.unit, description="Cost of the tokens.")
        cost.add(manifest["cost_usd"], attributes)
    usage = meter.create_histogram(
        TOKEN_USAGE.name,
        unit=TOKEN_USAGE.unit,
        description="Tokens of a job, one value per job.",
        explicit_bucket_boundaries_advisory=_TOKEN_BOUNDS,
    )
    for kind, number in _token_types(manifest["tokens"]).items():
        usage.record(number, attributes | {TOKEN_TYPE: kind})
    duration = meter.create_histogram(
        OPERATION_DURATION.name,
        unit=OPERATION_DURATION.unit,
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


def _trace(manifest: Mapping[str, Any], attributes: dict[str, str], ti: Any) -> None:
    from opentelemetry import trace

    # A child of Airflow's span of `execute`, although the job began before a task that was deferred resumed.
    span = trace.get_tracer(_SCOPE).start_span(
        f"{attributes[OPERATION]} {attributes[MODEL]}",
        kind=trace.SpanKind.CLIENT,
        attributes={**attributes, **_span_attributes(manifest, ti)},
        start_time=int(manifest["started_at"] * 1e9),
    )
    span.end(int(manifest["finished_at"] * 1e9))


def _span_attributes(manifest: Mapping[str, Any], ti: Any) -> dict[str, str | int | float | list[str]]:
    rows, tokens, server = manifest["rows"], manifest["tokens"], urlsplit(manifest["server"]["origin"])
    found = {
        "airflow.dag_run.run_id": ti.run_id,
        "airflow.task_instance.map_index": ti.map_index,
        "airflow.task_instance.try_number": ti.try_number,
        "gen_ai.usage.input_tokens": tokens["input"],
        "gen_ai.usage.output_tokens": tokens["output"],
        "gen_ai.usage.cache_read.input_tokens": tokens.get("cached", 0),
        "llmbeam.cost_usd": manifest["cost_usd"],
        "llmbeam.failed_request_ids": manifest.get("failed_request_ids"),
        "llmbeam.job.name": manifest["name"],
        "llmbeam.requests": manifest["requests"]["sent"],
        "llmbeam.rows.answered": rows["answered"],
        "llmbeam.rows.dead_letter": rows["dead_letter"],
        "llmbeam.rows.read": rows["read"],
        "server.address": server.hostname,
        "server.port": server.port,
    }
    return {name: value for name, value in found.items() if value is not None}


def _token_types(tokens: Mapping[str, Any]) -> dict[str, int]:
    return {"input": tokens["input"], "output": tokens["output"]}


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
    if kind == "vertex_endpoint" or (kind == "gemini" and "aiplatform" in host):
        return "gcp.vertex_ai"
    if kind == "gemini":
        # The well-known name of an unknown address of Google's API, such as a private one or the sandbox.
        return "gcp.gemini" if host == "generativelanguage.googleapis.com" else "gcp.gen_ai"
    return "openai_compatible" if kind == "openai" and host != "api.openai.com" else kind
