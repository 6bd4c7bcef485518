"""The emulated Flink as a client of its REST API sees it."""

from __future__ import annotations

import pytest
import requests
from llmbeam_sandbox import FlinkSettings


def test_a_running_job_takes_a_slot_until_it_is_cancelled(sandbox):
    job = sandbox.flink.jobs.add("n")
    overview = requests.get(f"{sandbox.flink_url}/overview", timeout=5).json()
    assert (overview["slots-total"], overview["slots-available"], overview["jobs-running"]) == (2, 1, 1)
    reply = requests.patch(f"{sandbox.flink_url}/jobs/{job.id}?mode=cancel", timeout=5)
    assert (reply.status_code, reply.json()) == (202, {})
    (listed,) = requests.get(f"{sandbox.flink_url}/jobs/overview", timeout=5).json()["jobs"]
    assert (listed["jid"], listed["name"], listed["state"]) == (job.id, "n", "CANCELED")
    assert listed["end-time"] >= listed["start-time"]
    reply = requests.patch(f"{sandbox.flink_url}/jobs/{job.id}?mode=cancel", timeout=5)
    assert reply.status_code == 409
    assert "already reached another terminal state (CANCELED)" in reply.json()["errors"][0]


def test_only_jobs_of_the_cluster_are_found_and_only_cancelling_is_emulated(sandbox):
    job = sandbox.flink.jobs.add("n")
    assert requests.get(f"{sandbox.flink_url}/jobs/{'0' * 32}", timeout=5).status_code == 404
    assert requests.patch(f"{sandbox.flink_url}/jobs/{job.id}?mode=stop", timeout=5).status_code == 400
    sandbox.flink.clear()
    assert requests.get(f"{sandbox.flink_url}/jobs/overview", timeout=5).json() == {"jobs": []}


def test_a_negative_number_of_task_managers_is_refused():
    with pytest.raises(ValueError, match=r"`FlinkSettings\.task_managers` must be >= 0; got -1\."):
        FlinkSettings(task_managers=-1)
