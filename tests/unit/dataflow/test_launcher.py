"""`DataflowLauncher` against the sandbox's Dataflow."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.dataflow.launcher import DataflowLauncher
from airflow_provider_llmbeam.dataflow.outcome import JobResult
from airflow_provider_llmbeam.dataflow.registry import SubmittedJob
from airflow_provider_llmbeam.exceptions import TooManyFailedRowsError
from airflow_provider_llmbeam.hooks.storage import StorageHook
from airflow_provider_llmbeam.manifest import encoded_page
from airflow_provider_llmbeam.sandbox import Fault
from airflow_provider_llmbeam.spec import JobSpec

REASON = "Waiting for the job ended with TaskDeferralTimeout."


@pytest.fixture
def task(google, log):
    return DataflowLauncher("google_cloud_default", None, None, log)


@pytest.fixture
def spec(google):
    return JobSpec.parse(
        {
            "name": "nightly",
            "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "gs://rows/out"},
            "runner": {"type": "dataflow", "project": google.project, "location": "europe-west1"},
        }
    )


def test_abandon_left_logs_that_no_job_is_running(task, log, spec):
    task.abandon_left(spec, REASON)
    assert log.lines == [f"{REASON} No job of this task is running."]


def test_abandon_left_logs_the_command_that_finds_the_job_if_dataflow_refuses(task, log, spec, sandbox):
    sandbox.faults.queue("dataflow.jobs.list", Fault(kind="error", http_status=403))
    task.abandon_left(spec, REASON)
    (line,) = log.lines
    assert line.startswith(f"{REASON} Its job may still be running and billing: ")
    assert "gcloud dataflow jobs list --status=active --filter=labels.llmbeam-job=nightly-" in line


@pytest.mark.parametrize("has_page", [True, False])
def test_the_error_of_a_job_whose_rows_failed_has_the_page_of_its_report(task, google, spec, has_page):
    if has_page:
        StorageHook(google.project).write(spec.failed_html_uri, "<p>5 of 20 rows")
    ended = JobResult("failed", "1", "FAILED", message="5 of 20 rows", error_type="TooManyFailedRowsError")
    with pytest.raises(TooManyFailedRowsError) as raised:
        task.collect(SubmittedJob.of(spec, "1", is_attached=False), ended)
    assert raised.value.page == (encoded_page("<p>5 of 20 rows", spec.failed_html_uri) if has_page else None)
