"""A task that is killed while it submits its job: Airflow's handler of SIGTERM calls `on_kill` and returns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.hooks.storage import StorageHook
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec.identity import dataflow_name, labels

LOCATION = "europe-west1"


class TaskTimeoutError(BaseException):
    """As Airflow's `execution_timeout`, which it raises anywhere, and then calls `on_kill`."""


@pytest.fixture
def task(google):
    return RunInferenceOperator(
        task_id="ask",
        source={"uri": "gs://rows/in.jsonl", "key": "id"},
        prompt="Say {{ row.text }}",
        model={"type": "echo"},
        sink="gs://rows/out",
        runner={"type": "dataflow", "project": google.project, "location": LOCATION},
    )


@pytest.fixture
def submitted(monkeypatch, sandbox, google):
    """Names of the jobs that the task submitted, each of which runs in the sandbox."""
    names = []

    def submit(process, options):
        names.append(dataflow_name(process._spec))
        fields = {"name": names[-1], "labels": labels(process._spec)}
        return {"id": sandbox.dataflow.add_running(google.project, LOCATION, fields)}

    monkeypatch.setattr(JobProcess, "submit", submit)
    return names


def context(xcom_push=lambda key, value: None):
    ti = SimpleNamespace(dag_id="d", task_id="ask", run_id="r", map_index=-1, try_number=1, xcom_push=xcom_push)
    return {"ti": ti, "dag_run": SimpleNamespace(start_date=None, logical_date=None)}


def killed_after(monkeypatch, owner, name, kill):
    function = getattr(owner, name)

    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        kill()
        return result

    monkeypatch.setattr(owner, name, call)


def states(sandbox):
    return [job["currentState"] for job in sandbox.dataflow.jobs]


def test_a_task_that_is_killed_before_the_submission_submits_no_job(task, submitted, sandbox, monkeypatch):
    killed_after(monkeypatch, StorageHook, "write", task.on_kill)
    with pytest.raises(JobFailedError, match=r"^The task was killed\."):
        task._run(context(), started_at=0.0)
    assert submitted == []


def test_a_job_whose_task_is_killed_during_the_submission_is_cancelled(task, submitted, sandbox, monkeypatch):
    killed_after(monkeypatch, JobProcess, "submit", task.on_kill)
    with pytest.raises(JobFailedError, match=r"^The task was killed\."):
        task._run(context(), started_at=0.0)
    assert len(submitted) == 1
    assert states(sandbox) == ["JOB_STATE_CANCELLED"]


def test_a_job_whose_submission_timed_out_is_cancelled(task, submitted, sandbox, monkeypatch):
    def time_out():
        raise TaskTimeoutError

    killed_after(monkeypatch, JobProcess, "submit", time_out)
    with pytest.raises(TaskTimeoutError):
        task._run(context(), started_at=0.0)
    task.on_kill()
    assert states(sandbox) == ["JOB_STATE_CANCELLED"]


def test_a_job_whose_task_is_killed_before_the_link_is_stored_is_cancelled(task, submitted, sandbox):
    def push(key, value):
        task.on_kill()
        raise TaskTimeoutError

    with pytest.raises(TaskTimeoutError):
        task._run(context(push), started_at=0.0)
    assert states(sandbox) == ["JOB_STATE_CANCELLED"]


class FailingAPI:
    """Airflow's API while it restarts: XComs and the id of a job cannot be stored, the intent before it could."""

    def xcom_push(self, key, value):
        raise RuntimeError("API_SERVER_ERROR: 503")

    def get(self, key):
        return None

    def set(self, key, value):
        if "id" in value:
            raise RuntimeError("API_SERVER_ERROR: 503")


def test_a_job_is_waited_for_though_its_id_and_its_links_could_not_be_stored(task, submitted, sandbox, capfd):
    api = FailingAPI()
    with pytest.raises(TaskDeferred) as deferred:
        task._run({**context(api.xcom_push), "task_state_store": api}, started_at=0.0)
    assert (len(submitted), states(sandbox)) == (1, ["JOB_STATE_RUNNING"])
    assert deferred.value.trigger.job["id"] == sandbox.dataflow.jobs[0]["id"]
    lines = capfd.readouterr().out
    assert "could not be recorded for a retry: API_SERVER_ERROR: 503" in lines
    assert "The link 'Open in Dataflow' could not be stored: API_SERVER_ERROR: 503" in lines
