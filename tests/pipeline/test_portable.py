"""A job behind a job service: Prism as the service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from waiting import until

from tests.pipeline.portable_service import job_service

pytestmark = pytest.mark.full


@pytest.fixture
def job_endpoint():
    """Address of a job service."""
    with job_service() as address:
        yield address


@pytest.fixture
def command(tmp_path):
    """Returns the command line of a job."""

    def command_of(job):
        (tmp_path / "job.json").write_text(json.dumps(job.spec))
        options = ["--spec", tmp_path / "job.json", "--result", tmp_path / "result.json"]
        return [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", *options]

    return command_of


def test_a_job_that_is_terminated_asks_its_service_to_cancel_it(job, sandbox, command, job_endpoint, tmp_path):
    job.spec["runner"] = {
        "type": "portable",
        "job_endpoint": job_endpoint,
        "environment": {"type": "LOOPBACK"},
    }
    job.write([{"id": number, "text": f"row {number}"} for number in range(20)])
    job.spec["limits"] |= {"max_in_flight": 2}
    hold = sandbox.faults.hold("gemini.generateContent", "row")
    environment = {name: value for name, value in os.environ.items() if name != "LLMBEAM_TESTS_FORK_SERVER"}
    environment |= {"GOOGLE_API_KEY": "k", "AIRFLOW__LLMBEAM__ALLOWED_PROGRAMS": job_endpoint}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command(job), env=environment, stderr=log)
    until(lambda: hold.waiting == 2, "requests are in flight")
    process.send_signal(signal.SIGTERM)
    until(lambda: "was asked to cancel the job" in (tmp_path / "log").read_text(), "the service is asked")
    hold.release()
    assert process.wait() == 130
    assert len(sandbox.requests) == 2
