"""What is known of a task's job, and the values of the run facets. Pure: no OpenLineage, no Airflow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner


@dataclass(frozen=True)
class JobFacts:
    """A job, as its task knows it.

    Attributes:
        spec: The job.
        postgres_dsn: Connection string of a PostgreSQL sink; only its host, port and database reach an event.
        manifest: What the job reported; `None` if it has not ended, or failed.
        estimate: The estimate of the job, by a task that estimates it.
        writes: Whether the task writes answers; one that estimates a job does not.
    """

    spec: JobSpec
    postgres_dsn: str | None = None
    manifest: Mapping[str, Any] | None = None
    estimate: Mapping[str, Any] | None = None
    writes: bool = True

    @property
    def has_outputs(self) -> bool:
        """Whether the task writes answers, or would have if it had not failed."""
        is_skipped = self.manifest is not None and self.manifest.get("skipped_because") is not None
        return self.writes and not is_skipped


def inference_values(spec: JobSpec) -> dict[str, Any]:
    """Returns the fields of `LLMInferenceRunFacet`: what was asked."""
    prompt = spec.prompt
    return {
        "jobName": spec.name,
        "task": spec.task,
        "modelType": spec.model.type,
        "modelName": spec.model.name,
        "serverOrigin": spec.server.origin or None,
        "promptSha256": sha256(prompt.template),
        "systemSha256": None if prompt.system is None else sha256(prompt.system),
        "outputSchemaSha256": None if prompt.output_schema is None else sha256(_canonical(prompt.output_schema)),
        "inferenceMode": spec.inference.mode,
        "runner": spec.runner.type,
        "region": spec.runner.location if isinstance(spec.runner, DataflowRunner) else None,
        "journalUri": spec.paths.journal_uri,
        "reportUri": spec.paths.report_uri,
        "deadLetterUri": spec.paths.dead_letter_uri,
    }


def usage_values(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `LLMUsageRunFacet`: what happened."""
    rows, tokens, requests = manifest["rows"], manifest["tokens"], manifest["requests"]
    return {
        "rowsRead": rows["read"],
        "rowsAnswered": rows["answered"],
        "rowsFailed": rows["dead_letter"],
        "failedByKind": dict(manifest["dead_letter_by_kind"]),
        "origins": {name: count for name, count in manifest["origins"].items() if count},
        "serviceTiers": dict(manifest.get("service_tiers", {})),
        "requests": requests["sent"],
        "rejectedRequests": requests["rejected"],
        "inputTokens": tokens["input"],
        "cachedInputTokens": tokens.get("cached", 0),
        "outputTokens": tokens["output"],
        "costUsd": manifest["cost_usd"],
        "truncatedAnswers": manifest["truncated"],
        "durationSeconds": manifest["duration_seconds"],
        "skippedBecause": manifest.get("skipped_because"),
    }


def estimate_values(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `LLMEstimateRunFacet`."""
    return {
        "rows": estimate["rows"],
        "requests": estimate["requests"],
        "inputTokens": estimate["input_tokens"],
        "outputTokens": estimate["output_tokens"],
        "costUsd": estimate["cost_usd"],
        "durationSeconds": estimate["duration_seconds"],
        "errorRatio": estimate["error_ratio"],
    }


def sha256(text: str) -> str:
    """Returns the SHA-256 of a text in hexadecimal digits: it tells prompts apart, and shows none."""
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=dict)
