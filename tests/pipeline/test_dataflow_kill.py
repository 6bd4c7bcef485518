"""A worker killed on Dataflow, or a job cancelled and submitted again, at random moments and with random windows.

`LLMBEAM_KILLS` sets how often; CONTRIBUTING.md says when to set it.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import httpx
import pytest
from waiting import scaled, until

from airflow_provider_llmbeam.sandbox import DataflowSettings, Latency, ModelSettings, Proxy, Sandbox
from tests.clouds import use_environment
from tests.pipeline.test_dataflow import Cloud

KILLS = int(os.environ.get("LLMBEAM_KILLS", "2"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(scaled(120 + 60 * KILLS))]

GEMINI = "gemini.generateContent"
ROWS = 120


@pytest.fixture(scope="module")
def cloud():
    with (
        Sandbox(
            buckets=("rows",),
            models=ModelSettings(latency=Latency(mean_seconds=0.5)),
            dataflow=DataflowSettings(workers=2),
        ) as sandbox,
        Proxy(sandbox) as proxy,
        pytest.MonkeyPatch.context() as patched,
    ):
        use_environment(patched, proxy.environment())
        cloud = Cloud(sandbox, proxy)
        rows = "".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(ROWS))
        cloud.bucket.blob("in.jsonl").upload_from_string(rows)
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

    def until_the_moment(self) -> None:
        until(lambda: self.paid.total() >= self._moment, lambda: f"{self.what}; {self.paid.total()} paid")

    @property
    def paid(self) -> Any:
        return self._cloud.sandbox.requests.paid(GEMINI)

    def check(self, job_id: str, most_twice: int) -> None:
        assert self._cloud.wait(job_id)["currentState"] == "JOB_STATE_DONE", self.what
        report = json.loads(self._cloud.text(f"{self._name}/report.json"))
        assert report["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0}, self.what
        paid_twice = self.paid.total() - ROWS
        print(f"paid twice: {paid_twice} of at most {most_twice}; {self.what}")
        assert len(self.paid) == ROWS, self.what
        assert paid_twice <= most_twice, self.what


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_worker_pays_twice_for_no_more_than_it_has_in_flight(cloud, number):
    cloud.sandbox.requests.clear()
    job = Disturbed(cloud, f"worker-{number}")
    job_id = job.submit()
    job.until_the_moment()
    cloud.sandbox.dataflow.kill_harness(job_id)
    job.check(job_id, job.max_in_flight)


@pytest.mark.parametrize("number", range(KILLS))
def test_a_cancelled_job_pays_twice_for_no_more_than_its_workers_have_in_flight(cloud, number):
    cloud.sandbox.requests.clear()
    job = Disturbed(cloud, f"cancelled-{number}")
    job_id = job.submit()
    job.until_the_moment()
    path = f"/v1b3/projects/{cloud.proxy.project}/locations/europe-west1/jobs/{job_id}"
    httpx.put(f"{cloud.sandbox.authorized_url}{path}", json={"requestedState": "JOB_STATE_CANCELLED"})
    assert cloud.wait(job_id)["currentState"] in ("JOB_STATE_CANCELLED", "JOB_STATE_DONE")
    job.check(job.submit(), 2 * job.max_in_flight)
