"""Jobs of tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_llmbeam.hooks.dataflow import PHASES
from airflow_provider_llmbeam.jobs.client import SubmittedJob
from airflow_provider_llmbeam.spec.remote_job import RemoteJob


def dataflow_job(
    job_id: str,
    name: str,
    state: str,
    created_at: datetime | None = None,
    labels: Mapping[str, str] | None = None,
    replaced_by: str | None = None,
) -> RemoteJob:
    """Returns a job of Dataflow in a state of its API."""
    phase = PHASES.get(state, "unknown")
    return RemoteJob(job_id, name, state, phase, created_at, labels or {}, replaced_by)


def submitted_job(**fields: Any) -> SubmittedJob:
    """Returns the record of a job of Dataflow with some fields of its own."""
    own = {"id": "job-1", "project": "acme-prod", "location": "europe-west1", "name": "nightly", "rest_url": ""}
    uris = {
        "journal_uri": "gs://rows/journal/",
        "progress_prefix": "gs://rows/progress/1-",
        "stop_uri": "gs://rows/stop",
        "report_uri": "gs://rows/report.json",
        "skipped_uri": "gs://rows/skipped.json",
        "failed_html_uri": "gs://rows/failed.html",
        "launch_error_uri": "",
    }
    others = {"digest": "12345678", "cancel_on_kill": True, "is_attached": False}
    return SubmittedJob(**{**own, **uris, **others, **fields})
