"""`JobLauncher` on Dataflow, against the sandbox."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import (
    AccessDeniedError,
    CloudNotFoundError,
    CloudUnavailableError,
    JobFailedError,
    JobSpecError,
    TooManyFailedRowsError,
)
from airflow_provider_llmbeam.hooks.storage import StorageHook
from airflow_provider_llmbeam.jobs.client import SubmittedJob, connect
from airflow_provider_llmbeam.jobs.launcher import STORE_KEY, JobLauncher
from airflow_provider_llmbeam.jobs.outcome import JobResult
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.protocol.manifest import encode_page
from tests.unit.jobs.values import dataflow_job


class Store(dict):
    """Fake of the state store of a task."""

    def set(self, key, value):
        self[key] = value


class FakeHook:
    """Dataflow in one region, with a job that ends when it is cancelled."""

    def __init__(self):
        self.cancelled = []

    def find(self, wanted, *, active_only=False):
        return []

    def get(self, job_id, within_seconds=None):
        return dataflow_job(job_id, "n", "JOB_STATE_CANCELLED" if self.cancelled else "JOB_STATE_RUNNING")

    def cancel(self, job_id):
        self.cancelled.append(job_id)

    def check(self, spec):
        pass

    def submit(self, spec, start):
        return "submitted"

    def files(self, uri):
        return self

    def write(self, uri, text, within_seconds):
        pass


def launcher(store, log, client=None):
    """Returns a launcher with a client of this test, or with those of the sandbox."""
    real = partial(connect, gcp_conn_id="google_cloud_default", impersonation_chain=None)
    return JobLauncher(client or real, store, log)


REASON = "Waiting for the job ended with TaskDeferralTimeout."


@pytest.fixture
def task(google, log):
    return launcher(None, log)


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


@pytest.fixture
def store():
    return Store()


def test_abandon_all_logs_that_no_job_is_running(task, log, spec):
    task.abandon_all(spec, REASON)
    assert log.lines == [f"{REASON} No job of this task is running."]


def test_abandon_all_logs_the_command_that_finds_the_job_if_dataflow_refuses(task, log, spec, sandbox):
    sandbox.faults.queue("dataflow.jobs.list", Fault(kind="error", http_status=403))
    task.abandon_all(spec, REASON)
    (line,) = log.lines
    assert line.startswith(f"{REASON} Its job may still be running and billing: ")
    assert "gcloud dataflow jobs list --status=active '--filter=name:nightly-" in line


def test_a_job_in_the_region_of_an_earlier_try_is_ended_before_another_is_submitted(
    google, spec, log, store, monkeypatch
):
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.cancellation.DRAIN_SECONDS", 0.0)
    store.set(STORE_KEY, SubmittedJob.of(spec, "1", is_attached=False).plain())
    there = FakeHook()
    regions = {"europe-west1": there, "us-central1": FakeHook()}
    moved = spec.model_copy(update={"runner": spec.runner.model_copy(update={"location": "us-central1"})})
    assert launcher(store, log, lambda job: regions[job.location]).obtain(moved).id == "submitted"
    assert there.cancelled == ["1"]
    assert "runs elsewhere, in 'europe-west1' of project" in log.lines[0]


def test_a_job_on_another_service_is_named_and_one_of_the_same_place_is_not_ended(spec, log, store):
    task = launcher(store, log, lambda _: FakeHook())
    kept = SubmittedJob.of(spec, "1", is_attached=False)
    task._end_job_at_other_place(kept)
    store.set(STORE_KEY, kept.plain())
    task._end_job_at_other_place(kept)
    assert log.lines == []
    store.set(STORE_KEY, replace(kept, rest_url="http://jm:8081").plain())
    task._end_job_at_other_place(kept)
    assert "Flink job '1' of an earlier try may still be running and billing" in log.lines[0]
    assert log.lines[0].endswith("To cancel it: curl -X PATCH 'http://jm:8081/jobs/1?mode=cancel'.")


@pytest.mark.parametrize(
    ("error", "is_named"), [(AccessDeniedError, True), (CloudNotFoundError, False), (CloudUnavailableError, None)]
)
def test_a_job_elsewhere_whose_state_cannot_be_read_is_named_or_looked_for_again(
    google, spec, log, store, monkeypatch, error, is_named
):
    def refused(self, job_id, within_seconds=None):
        raise error("HTTP.")

    monkeypatch.setattr(FakeHook, "get", refused)
    task = launcher(store, log, lambda _: FakeHook())
    store.set(STORE_KEY, SubmittedJob.of(spec, "1", is_attached=False).plain())
    moved = spec.model_copy(update={"runner": spec.runner.model_copy(update={"location": "us-central1"})})
    with nullcontext() if is_named is not None else pytest.raises(CloudUnavailableError):
        task._end_job_at_other_place(SubmittedJob.of(moved, "", is_attached=False))
    assert ["may still be running" in line for line in log.lines] == ([True] if is_named else [])


@pytest.mark.parametrize("has_page", [True, False])
def test_the_error_of_a_job_whose_rows_failed_has_the_page_of_its_report(task, google, spec, has_page):
    if has_page:
        StorageHook(google.project).write(spec.paths.failed_html_uri, "<p>5 of 20 rows")
        StorageHook(google.project).write(spec.paths.failed_uri, '{"rows": {"read": 20}, "spec": {}}')
    ended = JobResult("failed", "1", "FAILED", message="5 of 20 rows", error_type="TooManyFailedRowsError")
    with pytest.raises(TooManyFailedRowsError) as raised:
        task.collect(SubmittedJob.of(spec, "1", is_attached=False), ended)
    assert raised.value.page == (encode_page("<p>5 of 20 rows", spec.paths.failed_html_uri) if has_page else None)
    assert raised.value.report == ({"rows": {"read": 20}} if has_page else None), "for metrics and traces"


@pytest.mark.parametrize(
    ("left", "error"),
    [
        ("airflow_provider_llmbeam.exceptions.JobSpecError: `source.uri` matches no file.", JobSpecError),
        ("Traceback (most recent call last):\nImportError: no module named 'torch'", JobFailedError),
        ("", JobFailedError),
        (None, JobFailedError),
    ],
)
def test_the_error_of_a_job_that_its_template_did_not_start_is_that_of_the_launcher(
    task, google, spec, left, error
):
    runner = spec.runner.model_copy(update={"flex_template": "gs://rows/t.json"})
    spec = spec.model_copy(update={"runner": runner})
    if left is not None:
        StorageHook(google.project).write(spec.paths.launch_error_uri, left)
    ended = JobResult("failed", "1", "FAILED", message="See console logs.", error_type="JobFailedError")
    with pytest.raises(error) as raised:
        task.collect(SubmittedJob.of(spec, "1", is_attached=False), ended)
    assert (left or "See console logs.").rpartition("Error: ")[2] in str(raised.value)
