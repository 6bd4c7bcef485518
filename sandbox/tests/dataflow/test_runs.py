"""The jobs of the emulated Dataflow, as threads that a reset ends."""

from __future__ import annotations

import time

import pytest
from llmbeam_sandbox.dataflow.runs import Runs
from llmbeam_sandbox.dataflow.settings import DataflowSettings
from llmbeam_sandbox.dataflow.state import PENDING, Jobs


@pytest.mark.timeout(30)
def test_a_job_that_is_submitted_while_all_are_ended_does_not_wait_for_its_start():
    jobs = Jobs(time.time)
    runs = Runs(jobs, DataflowSettings(start_seconds=3600))

    def launch(job):
        """A launcher that submits its job when it is cancelled."""
        runs.pause(job)
        runs.execute(jobs.add("p", "europe-west1", {"name": "late"}, PENDING))

    runs.in_thread(jobs.add("p", "europe-west1", {"name": "launcher"}, PENDING), launch)
    runs.end_all()
    assert runs._running_threads() == []
    runs.end_all()
