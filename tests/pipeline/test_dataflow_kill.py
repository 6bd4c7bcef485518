"""A worker killed on Dataflow, or a job cancelled and submitted again, at random moments and with random windows.

A further attempt of a bundle has its rows in another order, so that its batches are others. `LLMBEAM_KILLS` sets
how often.
"""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest
from waiting import scaled, until

from tests.pipeline.dataflow_cloud import Cloud, dataflow_cloud
from tests.processes import KILLS

pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(1),
    pytest.mark.promise(2),
    pytest.mark.slow,
    pytest.mark.timeout(scaled(120 + 60 * KILLS)),
]

GEMINI = "gemini.generateContent"
ROWS = 120


@pytest.fixture(scope="module")
def cloud():
    with dataflow_cloud(ROWS, latency_seconds=0.5, shuffles_retries=True) as cloud:
        yield cloud


class Disturbed:
    """A job with a random window and random batches, and a random moment."""

    def __init__(self, cloud: Cloud, name: str) -> None:
        seed = random.randrange(10**6)
        chances = random.Random(seed)
        self._cloud = cloud
        self._name = name
        self.max_in_flight = chances.randrange(1, 25)
        batch_size = chances.randrange(5, ROWS)
        self._moment = chances.randrange(ROWS)
        self.what = f"seed {seed}: {self.max_in_flight} in flight, batches of {batch_size}, after {self._moment}"
        self._spec = cloud.spec(
            name, limits={"max_in_flight": self.max_in_flight}, batching={"max_batch_size": batch_size}
        )

    def submit(self) -> str:
        return self._cloud.submit(self._spec)

    def submit_until_the_moment(self) -> str:
        self._cloud.sandbox.requests.clear()
        job_id = self.submit()
        until(lambda: self.paid.total() >= self._moment, lambda: f"{self.what}; {self.paid.total()} paid")
        return job_id

    @property
    def paid(self) -> Any:
        return self._cloud.sandbox.requests.paid(GEMINI)

    def check(self, job_id: str, most_twice: int) -> None:
        assert self._cloud.wait(job_id)["currentState"] == "JOB_STATE_DONE", self.what
        report = json.loads(self._cloud.text(f"{self._name}/report.json"))
        assert report["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}, self.what
        paid_twice = self.paid.total() - ROWS
        print(f"paid twice: {paid_twice} of at most {most_twice}; {self.what}")
        assert len(self.paid) == ROWS, self.what
        assert paid_twice <= most_twice, self.what


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_worker_or_a_cancelled_job_pays_twice_for_no_more_than_its_workers_have_in_flight(cloud, number):
    job = Disturbed(cloud, f"job-{number}")
    job_id = job.submit_until_the_moment()
    if number % 2 == 0:
        cloud.sandbox.dataflow.kill_harness(job_id)
        job.check(job_id, job.max_in_flight)
    else:
        path = f"/v1b3/projects/{cloud.proxy.project}/locations/europe-west1/jobs/{job_id}"
        httpx.put(f"{cloud.sandbox.authorized_url}{path}", json={"requestedState": "JOB_STATE_CANCELLED"})
        assert cloud.wait(job_id)["currentState"] in ("JOB_STATE_CANCELLED", "JOB_STATE_DONE")
        job.check(job.submit(), 2 * job.max_in_flight)
