"""`JobLauncher` on Flink, against the sandbox."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.hooks.storage import files_at
from airflow_provider_llmbeam.jobs.client import SubmittedJob, connect
from airflow_provider_llmbeam.jobs.launcher import JobLauncher
from airflow_provider_llmbeam.jobs.outcome import JobResult
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.identity import flink_name, job_identity, progress_prefix
from airflow_provider_llmbeam.spec.protocol.counts import Counts

REASON = "The task was killed."


@pytest.fixture
def launcher(log):
    return JobLauncher(partial(connect, gcp_conn_id="google_cloud_default", impersonation_chain=None), None, log)


@pytest.fixture
def spec(sandbox, tmp_path):
    return JobSpec.parse(
        {
            "name": "nightly",
            "source": {"uri": f"{tmp_path}/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": f"{tmp_path}/out"},
            "runner": {
                "type": "flink",
                "rest_url": sandbox.flink_url,
                "job_endpoint": "127.0.0.1:9",
                "flink_version": "1.19",
                "environment": {"type": "PROCESS", "command": "/boot"},
            },
        }
    )


@pytest.fixture
def submitted(monkeypatch, sandbox, spec):
    """Submissions of this test, each of which makes a job on the cluster."""
    ids: list[str] = []

    def submit(process: JobProcess) -> dict[str, Any]:
        ids.append(sandbox.flink.jobs.add(flink_name(process._spec)).id)
        return {"id": ids[-1], "rest_url": sandbox.flink_url}

    monkeypatch.setattr(JobProcess, "submit", submit)
    return ids


def test_a_retry_finds_the_job_of_the_try_before(launcher, spec, submitted):
    first = launcher.obtain(spec)
    again = launcher.obtain(spec)
    assert (first.id, first.is_attached) == (submitted[0], False)
    assert (again.id, again.is_attached) == (submitted[0], True)
    assert SubmittedJob(**json.loads(json.dumps(again.plain()))) == again


def test_a_job_with_another_specification_is_cancelled_before_the_next_is_submitted(
    launcher, spec, submitted, sandbox, monkeypatch
):
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.cancellation.DRAIN_SECONDS", 0.0)
    other = sandbox.flink.jobs.add(f"{job_identity(spec)}-0badcafe")
    assert not launcher.obtain(spec).is_attached
    assert other.state == "CANCELED"
    assert files_at(spec.paths.stop_uri, "g").exists(spec.paths.stop_uri)


def of_run(spec, run_id, template):
    run = {"dag_id": "d", "task_id": "ask", "run_id": run_id, "map_index": -1}
    return JobSpec.parse({**spec.model_dump(), "airflow_run": run, "prompt": {"template": template}})


def test_a_running_job_of_another_run_with_the_same_job_name_is_left_alone(launcher, spec, submitted, sandbox):
    monday, tuesday = of_run(spec, "monday", "{{ row.t }}"), of_run(spec, "tuesday", "{{ row.another }}")
    job = launcher.obtain(monday)
    with pytest.raises(
        JobFailedError, match=rf"^`job_name`: job '{job.id}' of another task or run, '[0-9a-f]{{8}}'"
    ):
        launcher.obtain(tuesday)
    launcher.abandon_all(tuesday, REASON)
    assert [found.state for found in sandbox.flink.jobs.all()] == ["RUNNING"]
    assert launcher.obtain(of_run(spec, "tuesday", "{{ row.t }}")).id == job.id, (
        "the same spec: the run waits for it"
    )
    launcher.abandon_all(monday, REASON)
    assert [found.state for found in sandbox.flink.jobs.all()] == ["CANCELED"]


def test_no_stop_file_is_written_for_a_job_that_has_ended(launcher, spec, submitted, sandbox):
    """The next job of its name may have begun, and would end."""
    job = launcher.obtain(spec)
    for state in ("CANCELED", "FINISHED"):
        sandbox.flink.jobs.move(sandbox.flink.jobs.all()[0], state)
        launcher.abandon(job, REASON)
        assert not files_at(spec.paths.stop_uri, "g").exists(spec.paths.stop_uri)


def test_a_job_whose_state_cannot_be_read_is_cancelled(launcher, spec, submitted, sandbox):
    job = launcher.obtain(spec)
    sandbox.faults.queue("flink.jobs.get", Fault(kind="error", http_status=503))
    launcher.abandon(job, REASON)
    assert sandbox.flink.jobs.all()[0].state == "CANCELED"
    assert files_at(spec.paths.stop_uri, "g").exists(spec.paths.stop_uri)


def test_a_cluster_that_refuses_is_a_mistake_and_nothing_is_submitted(launcher, spec, submitted, sandbox):
    sandbox.faults.queue("flink.jobs.overview", Fault(kind="error", http_status=403, message="no"))
    with pytest.raises(JobSpecError, match=r"\(HTTP 403\): no\. Nothing was sent or billed\."):
        launcher.obtain(spec)
    assert submitted == []


def test_the_report_of_a_finished_job_is_its_manifest(launcher, spec, submitted):
    job = launcher.obtain(spec)
    report = {"rows": {"read": 3, "answered": 3, "dead_letter": 0}, "spec": {"name": "nightly"}}
    files_at(spec.paths.report_uri, "g").write(spec.paths.report_uri, json.dumps(report))
    manifest = launcher.collect(job, JobResult("succeeded", job.id, "FINISHED", message="done"))
    assert manifest["rows"]["read"] == 3
    assert launcher.page(job, spec.paths.failed_html_uri) is None


@pytest.mark.parametrize("cancels", [True, False])
def test_a_killed_task_cancels_its_job_or_says_how_to(launcher, spec, submitted, sandbox, log, cancels):
    runner = spec.runner.model_copy(update={"cancel_on_kill": cancels})
    job = launcher.obtain(spec.model_copy(update={"runner": runner}))
    launcher.abandon(job, REASON)
    (found,) = sandbox.flink.jobs.all()
    assert found.state == ("CANCELED" if cancels else "RUNNING")
    assert log.lines[-1].startswith(f"{REASON} Flink job '{job.id}' ")
    assert ("curl -X PATCH" in log.lines[-1]) != cancels
    # Flink keeps the workers of a cancelled job.
    assert files_at(spec.paths.stop_uri, "g").exists(spec.paths.stop_uri) == cancels


def test_a_task_that_was_killed_submits_no_job(launcher, spec, submitted):
    launcher.kill(None)
    with pytest.raises(JobFailedError, match=r"^The task was killed\."):
        launcher.obtain(spec)
    assert submitted == []


def test_jobs_whose_id_is_not_known_any_more_are_found_by_their_names(launcher, spec, submitted, sandbox, log):
    launcher.abandon_all(spec, REASON)
    assert log.lines == [f"{REASON} No job of this task is running."]
    launcher.obtain(spec)
    launcher.abandon_all(spec, REASON)
    assert sandbox.flink.jobs.all()[0].state == "CANCELED"
    sandbox.faults.queue("flink.jobs.overview", Fault(kind="error", http_status=503))
    launcher.abandon_all(spec, REASON)
    assert f"To find it: curl '{sandbox.flink_url}/jobs/overview'" in log.lines[-1]


def test_the_counts_of_all_workers_are_added_up(spec):
    prefix, files = progress_prefix(spec), files_at(spec.paths.progress_uri, "g")
    client = connect(SubmittedJob.of(spec, "1", is_attached=False), "g", None)
    assert client.counts("1", running=True) == Counts()
    files.write(f"{prefix}a.json", '{"rows": 3, "answered": 1}')
    files.write(f"{prefix}b.json", '{"rows": 4}')
    files.write(f"{prefix}c.json", '{"rows": ')
    files.write(f"{spec.paths.progress_uri}another-run.json", '{"rows": 100}')
    assert client.counts("1", running=True) == Counts(rows=7, answered=1)
