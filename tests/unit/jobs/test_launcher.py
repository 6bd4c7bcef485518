from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from airflow_provider_llmbeam.exceptions import (
    AccessDeniedError,
    CloudNotFoundError,
    CloudUnavailableError,
    JobFailedError,
)
from airflow_provider_llmbeam.jobs.client import SubmittedJob
from airflow_provider_llmbeam.jobs.launcher import CLOCK_SECONDS, END_SECONDS, STORE_KEY, JobLauncher
from airflow_provider_llmbeam.jobs.outcome import JobResult
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.identity import dataflow_name, identity, labels
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from tests.unit.jobs.values import dataflow_job

REPORT = {"rows": {"read": 3, "answered": 2, "dead_letter": 1}, "spec": {"name": "nightly"}}


class Dataflow:
    """Fake of Dataflow and Cloud Storage for one task; a cancelled job ends after three polls."""

    def __init__(self):
        self.jobs, self.cancelled, self.rows, self.polls, self.written = {}, [], 3, 0, []

    def add(self, spec, job_id, state="JOB_STATE_RUNNING"):
        self.jobs[job_id] = dataflow_job(job_id, dataflow_name(spec), state, datetime.now(UTC), labels(spec))

    def find(self, wanted, *, active_only=False):
        found = [job for job in self.jobs.values() if job.name.startswith(wanted)]
        return [job for job in found if not (active_only and job.is_over)]

    def get(self, job_id, within_seconds=None):
        if job_id not in self.jobs:
            raise CloudNotFoundError(job_id)
        self.polls += 1
        if self.jobs[job_id].phase == "cancelling" and self.polls >= 3:
            self.jobs[job_id] = replace(self.jobs[job_id], phase="cancelled")
        return self.jobs[job_id]

    def cancel(self, job_id):
        self.cancelled.append(job_id)
        self.jobs[job_id] = replace(self.jobs[job_id], phase="cancelling")

    def counts(self, job_id, *, running):
        return Counts(rows=self.rows)

    def files(self, uri):
        return self

    def exists(self, uri):
        return uri in self.written

    def write(self, uri, text, within_seconds):
        self.written.append(uri)

    def read(self, uri):
        if uri.endswith("/skipped.json"):
            return json.dumps(REPORT | {"skipped_because": "no rows"})
        assert uri == "gs://b/out/report.json"
        return json.dumps(REPORT)


class Jobs:
    """A launcher with one client."""

    def __init__(self, dataflow, store, log, **arguments):
        self.dataflow, self.launcher = dataflow, JobLauncher(lambda _: dataflow, store, log, **arguments)

    def find(self, spec):
        return self.launcher.find(spec, self.dataflow)

    def collect(self, job):
        return self.launcher.collect(job, JobResult("succeeded", job.id, "JOB_STATE_DONE", message="Job is done."))


class Log:
    def __init__(self):
        self.lines = []

    def info(self, event, *args):
        self.lines.append(event % args)

    warning = info

    def log(self, level, event, *args):
        self.info(event, *args)


class Store(dict):
    """Fake of the state store of a task."""

    def set(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


@pytest.fixture
def spec():
    return JobSpec.parse(
        {
            "name": "nightly",
            "source": {"uri": "gs://b/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "gs://b/out"},
            "runner": {"type": "dataflow", "project": "acme-prod", "location": "europe-west1"},
        }
    )


@pytest.fixture
def dataflow():
    return Dataflow()


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def jobs(dataflow, store, log):
    return Jobs(dataflow, store, log, sleep=lambda seconds: None)


def test_a_first_try_finds_nothing(jobs, spec):
    assert jobs.find(spec) is None


def test_a_retry_attaches_to_the_running_job(jobs, dataflow, store, spec):
    dataflow.add(spec, "1")
    found = jobs.find(spec)
    assert (found.id, found.is_attached) == ("1", True)
    assert store[STORE_KEY]["id"] == "1"
    assert dataflow.cancelled == []


def test_the_job_of_another_task_is_neither_found_nor_cancelled(jobs, dataflow, spec):
    dataflow.add(spec.model_copy(update={"name": "weekly"}), "1")
    assert jobs.find(spec) is None
    assert dataflow.cancelled == []


def test_a_job_of_another_spec_is_stopped_and_cancelled_first(jobs, dataflow, log, spec):
    dataflow.add(JobSpec.parse({**spec.model_dump(), "prompt": {"template": "{{ row.another }}"}}), "1")
    assert jobs.find(spec) is None
    assert (dataflow.written, dataflow.cancelled) == ([spec.paths.stop_uri], ["1"])
    assert dataflow.jobs["1"].is_over
    assert "has another specification" in log.lines[0]


def test_a_job_that_is_being_cancelled_is_waited_for(jobs, dataflow, spec):
    dataflow.add(spec, "1", "JOB_STATE_CANCELLING")
    assert jobs.find(spec) is None
    assert (dataflow.cancelled, dataflow.jobs["1"].is_over) == ([], True)


def test_a_job_with_a_stop_file_is_ended_and_not_attached_to(jobs, dataflow, log, spec):
    dataflow.add(spec, "1")
    dataflow.write(spec.paths.stop_uri, "", 1.0)
    assert jobs.find(spec) is None
    assert dataflow.cancelled == ["1"]
    assert dataflow.jobs["1"].is_over
    assert f"was told to stop by {spec.paths.stop_uri!r}" in log.lines[0]


def test_a_conflicting_job_that_does_not_end_is_an_error(dataflow, store, log, spec):
    waited = []
    dataflow.add(spec, "1", "JOB_STATE_CANCELLING")
    dataflow.polls = -(10**6)
    with pytest.raises(JobFailedError, match=r"'1'.*did not end within 600 s.*nothing else was submitted"):
        Jobs(dataflow, store, log, sleep=waited.append).find(spec)
    assert sum(waited) == END_SECONDS


def test_a_job_that_dataflow_no_longer_has_is_not_collected(jobs, spec):
    jobs.launcher._record(SubmittedJob.of(spec, "1", is_attached=False))
    assert jobs.find(spec) is None


def of_run(spec, run_id, template):
    run = {"dag_id": "d", "task_id": "ask", "run_id": run_id, "map_index": -1}
    return JobSpec.parse({**spec.model_dump(), "airflow_run": run, "prompt": {"template": template}})


def test_a_running_job_of_another_run_with_the_same_job_name_is_left_alone(jobs, dataflow, spec):
    dataflow.add(of_run(spec, "monday", "{{ row.t }}"), "1")
    with pytest.raises(JobFailedError, match=r"^`job_name`: job '1' of another task or run, 'd-ask-monday--1-"):
        jobs.find(of_run(spec, "tuesday", "{{ row.another }}"))
    assert dataflow.cancelled == []
    assert jobs.find(of_run(spec, "tuesday", "{{ row.t }}")).id == "1", "the same spec: the run waits for it"


def test_a_job_without_the_label_of_a_run_may_be_that_of_this_one(jobs, dataflow, spec):
    dataflow.add(spec, "1")
    assert jobs.find(of_run(spec, "tuesday", "{{ row.another }}")) is None
    assert dataflow.cancelled == ["1"]


def test_a_running_job_of_another_spec_of_the_same_run_is_replaced(jobs, dataflow, spec):
    dataflow.add(of_run(spec, "monday", "{{ row.t }}"), "1")
    assert jobs.find(of_run(spec, "monday", "{{ row.another }}")) is None
    assert dataflow.cancelled == ["1"]


def test_a_finished_job_of_another_spec_is_not_collected(jobs, dataflow, spec):
    jobs.launcher._record(SubmittedJob.of(spec, "1", is_attached=False))
    dataflow.add(spec, "1", "JOB_STATE_DONE")
    assert jobs.find(JobSpec.parse({**spec.model_dump(), "prompt": {"template": "{{ row.another }}"}})) is None


def test_a_job_created_before_the_intent_is_not_collected(dataflow, store, log, spec):
    later = datetime.now(UTC).timestamp() + CLOCK_SECONDS + 1
    jobs = Jobs(dataflow, store, log, now=lambda: later)
    dataflow.add(spec, "j1", "JOB_STATE_DONE")
    jobs.launcher._record_intent(spec)
    assert jobs.find(spec) is None


@pytest.mark.parametrize("state", ["JOB_STATE_FAILED", "JOB_STATE_CANCELLED"])
def test_an_intended_job_that_did_not_succeed_is_not_collected(jobs, dataflow, spec, state):
    jobs.launcher._record_intent(spec)
    dataflow.add(spec, "j1", state)
    assert jobs.find(spec) is None


def test_the_report_of_a_skipped_job_is_collected(jobs, dataflow, spec):
    dataflow.written.append(spec.paths.skipped_uri)
    job = SubmittedJob.of(spec, "1", is_attached=False)
    assert jobs.collect(job)["skipped_because"] == "no rows"


def test_differing_counts_are_logged(jobs, dataflow, log, spec):
    dataflow.rows = 2
    jobs.collect(SubmittedJob.of(spec, "1", is_attached=False))
    (_, line) = log.lines
    assert line.startswith("Dataflow's counter says that 2 rows were read, the report 3.")


@pytest.mark.parametrize("error", [CloudUnavailableError, AccessDeniedError])
def test_a_finished_job_is_collected_although_its_counters_cannot_be_read(
    jobs, dataflow, log, spec, monkeypatch, error
):
    def refuse(job_id, *, running):
        raise error("no counters")

    monkeypatch.setattr(dataflow, "counts", refuse)
    assert jobs.collect(SubmittedJob.of(spec, "1", is_attached=False))["rows"] == REPORT["rows"]
    assert log.lines[1:] == ["The report is not compared with Dataflow's counter of rows: no counters"]


def test_a_task_job_survives_a_deferral(spec):
    job = SubmittedJob.of(spec, "1", is_attached=True)
    assert SubmittedJob(**json.loads(json.dumps(job.plain()))) == job
    assert identity(spec.name) in dataflow_name(spec)
