from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llmbeam_sandbox import Fault, Sandbox

from airflow_provider_llmbeam.engine.pacing.outage import Outage
from airflow_provider_llmbeam.exceptions import JobRefusedError, JobSpecError, ModelUnavailableError
from airflow_provider_llmbeam.pipeline.privacy.dlp import table
from airflow_provider_llmbeam.pipeline.privacy.dlp.inspector import (
    Inspector,
    inspections_of,
    inspector_of,
    project_of,
)
from airflow_provider_llmbeam.pipeline.privacy.finding import Cell, Finding
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.safety import DlpDetector

METHOD = "dlp.content.inspect"
DATAFLOW = {
    "type": "dataflow",
    "project": "runner-project",
    "location": "europe-west1",
    "environment_secrets": {"LLMBEAM_PRIVACY_KEY": "projects/p/secrets/s/versions/latest"},
}


def job(**changes: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "gs://b/rows.jsonl", "key": "id"},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "gs://b/out"},
            "safety": {"privacy": {"detectors": ["dlp"]}},
        }
        | changes
    )


@pytest.fixture
def inspector(sandbox: Sandbox, google):
    """Makes an inspector; each project has a governor of its own."""

    def make(project: str, **fields: Any) -> Inspector:
        return Inspector(DlpDetector(type="dlp", base_url=sandbox.url, **fields), project, Limits())

    return make


@pytest.mark.parametrize(
    ("changes", "project"),
    [
        ({"model": {"type": "gemini", "project": "model-project"}, "runner": DATAFLOW}, "model-project"),
        ({"runner": DATAFLOW}, "runner-project"),
        (
            {
                "model": {
                    "type": "vertex_endpoint",
                    "name": "m",
                    "endpoint": "projects/endpoint-project/locations/europe-west1/endpoints/1",
                }
            },
            "endpoint-project",
        ),
        (
            {
                "safety": {"privacy": {"detectors": [{"type": "dlp", "project": "own-project"}]}},
                "runner": DATAFLOW,
            },
            "own-project",
        ),
    ],
)
def test_the_project_is_that_of_the_detector_the_model_or_the_runner(changes, project):
    spec = job(**changes)
    assert project_of(spec, spec.safety.privacy.dlp) == project


def test_a_job_without_a_project_or_without_credentials_does_not_start(monkeypatch):
    with pytest.raises(JobSpecError, match="needs the Google Cloud project that is billed"):
        inspector_of(job())
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    privacy = {"detectors": [{"type": "dlp", "project": "own-project"}]}
    with pytest.raises(
        JobSpecError, match=r"Sensitive Data Protection \(`safety.privacy.detectors`\) needs Google"
    ):
        inspector_of(job(safety={"privacy": privacy}))
    assert inspections_of(job(safety={"privacy": {}})) is None


def test_the_name_of_a_column_reaches_the_service_and_the_likelihood_is_asked_for(inspector, sandbox):
    cells = [Cell("birthday of birth", "1990-01-02"), Cell("shipped", "1990-01-02")]
    found = inspector("p-columns", min_likelihood="LIKELY").inspect(cells).found
    assert found == {cells[0]: (Finding(0, 10, "DATE_OF_BIRTH", 1.0),), cells[1]: ()}
    assert len(sandbox.dlp.inspected) == 1


def test_a_quota_is_kept_by_the_governor_and_costs_time_only(inspector, sandbox, monkeypatch):
    sandbox.dlp.set_quota(requests_per_minute=60)  # two requests at once, and one each second
    monkeypatch.setattr(table, "MAX_TEXTS", 1)
    cells = [Cell("text", f"a{number}@b.de") for number in range(5)]
    found = inspector("p-governed").inspect(cells).found
    assert all(found[cell] == (Finding(0, len(cell.text), "EMAIL", 0.8),) for cell in cells)
    assert len(sandbox.dlp.inspected) == 5
    assert any(record.http_status == 429 for record in sandbox.requests)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"info_types": ("NO_SUCH_TYPE",)}, 'Invalid built-in info type name "NO_SUCH_TYPE"'),
        ({"location": "nowhere"}, "got location 'nowhere'"),
    ],
)
def test_an_unknown_type_or_location_ends_the_job(inspector, fields, message):
    with pytest.raises(JobRefusedError, match=message):
        inspector("p-unknown", **fields).inspect([Cell("text", "a@b.de")])


def test_a_missing_permission_names_the_role_and_the_project(inspector, sandbox):
    sandbox.faults.queue(METHOD, Fault(kind="error", http_status=403))
    made = inspector("p-forbidden")
    with pytest.raises(JobRefusedError, match=r"HTTP 403.*needs the role roles/dlp.user on project 'p-forbidden'"):
        made.inspect([Cell("text", "a@b.de")])
    assert made.inspect([Cell("text", "a@b.de")]).requests == 1, "another try starts again"


def test_a_service_that_cannot_be_reached_ends_the_job_and_a_retry_may_succeed(google, monkeypatch):
    monkeypatch.setattr(Outage, "LONGEST_SECONDS", 0.0)
    monkeypatch.setattr(Outage, "FAILURES", 1)
    detector = DlpDetector(type="dlp", base_url="http://127.0.0.1:9")
    with pytest.raises(ModelUnavailableError, match="Sensitive Data Protection cannot be reached") as caught:
        Inspector(detector, "p-down", Limits()).inspect([Cell("text", "a@b.de")])
    assert caught.value.retryable


def test_texts_of_requests_that_fail_for_good_are_not_called_clean(inspector, sandbox, monkeypatch):
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.privacy.dlp.inspector.MAX_ATTEMPTS", 1)
    sandbox.faults.queue(METHOD, Fault(kind="error", http_status=500))
    cell = Cell("text", "a@b.de")
    found = inspector("p-failing").inspect([cell]).found
    assert found[cell] == "Sensitive Data Protection did not inspect it (server_error)"


def test_texts_are_inspected_from_within_an_event_loop(inspector):
    cell = Cell("text", "a@b.de")

    async def notebook() -> Any:
        return inspector("p-notebook").inspect([cell])

    assert asyncio.run(notebook()).found[cell] == (Finding(0, 6, "EMAIL", 0.8),)
