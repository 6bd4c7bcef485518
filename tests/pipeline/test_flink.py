"""A job on the sandbox's Flink: submitted, found again, monitored and collected, with Prism as the cluster."""

from __future__ import annotations

import json
import logging
import time
from functools import partial

import pytest
from llmbeam_sandbox import FlinkSettings

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.jobs.client import connect
from airflow_provider_llmbeam.jobs.launcher import JobLauncher
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.triggers.job import JobTrigger
from tests.pipeline.portable_service import job_service, worker_pool

# Beam's pool leaves the pipe of each worker open.
pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(2),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
LOG = logging.getLogger("llmbeam.test")


@pytest.fixture
def spec(echo_job, sandbox, monkeypatch):
    """A job with a worker that is a process, on the cluster of the sandbox."""
    with job_service() as job_endpoint, worker_pool(monkeypatch) as pool:
        sandbox.flink.settings = FlinkSettings(job_endpoint=job_endpoint, task_managers=1)
        echo_job.write([{"id": number, "text": "t"} for number in range(30)])
        echo_job.spec["model"]["latency_seconds"] = 1.0
        echo_job.spec["runner"] = {
            "type": "flink",
            "rest_url": sandbox.flink_url,
            "job_endpoint": job_endpoint,
            "flink_version": "1.19",
            "environment": {"type": "EXTERNAL", "address": pool},
        }
        yield JobSpec.parse(echo_job.spec)


def test_a_job_is_submitted_once_monitored_and_collected(spec, sandbox):
    client = partial(connect, gcp_conn_id="google_cloud_default", impersonation_chain=None)
    launcher = JobLauncher(client, None, LOG)
    job = launcher.obtain(spec)
    again = JobLauncher(client, None, LOG).obtain(spec)
    assert (again.id, again.is_attached) == (job.id, True)
    with pytest.raises(JobFailedError, match=rf"runs already on Flink, as '{job.id}'. To cancel it: curl"):
        run(spec)
    monitor = JobTrigger(job=job.plain()).make_poller(LOG)
    while isinstance(result := monitor.poll(), Wait):
        time.sleep(0.2)
    assert (result.outcome, result.state) == ("succeeded", "FINISHED")
    manifest = launcher.collect(job, result)
    assert manifest["rows"] == {"read": 30, "answered": 30, "dead_letter": 0, "skipped": 0}
    assert len(sandbox.flink.jobs.all()) == 1
    assert client(job).counts(job.id, running=False).rows == 30
    (answers,) = manifest["answers_uris"]
    with open(answers) as lines:  # noqa: PTH123
        assert len({json.loads(line)["id"] for line in lines}) == 30
