"""All metrics of this package, and the attributes that they share. Pure; docs/metrics.md lists them.

Source of the names that begin with `gen_ai.`: OpenTelemetry semantic conventions for generative AI, semconv 1.41.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

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


def _provider(kind: str, origin: str) -> str:
    host = urlsplit(origin).hostname or ""
    if kind == "vertex_endpoint" or (kind == "gemini" and "aiplatform" in host):
        return "gcp.vertex_ai"
    if kind == "gemini":
        # The well-known name of an unknown address of Google's API, such as a private one or the sandbox.
        return "gcp.gemini" if host == "generativelanguage.googleapis.com" else "gcp.gen_ai"
    return "openai_compatible" if kind == "openai" and host != "api.openai.com" else kind
