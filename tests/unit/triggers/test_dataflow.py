from __future__ import annotations

import asyncio
import importlib
import json

import pytest

from airflow_provider_llmbeam.exceptions import CloudUnavailableError
from airflow_provider_llmbeam.jobs.outcome import JobResult
from airflow_provider_llmbeam.spec.protocol.counts import NANO, Counts
from airflow_provider_llmbeam.triggers.job import JobTrigger
from tests.unit.jobs.values import dataflow_job, submitted_job

JOB = submitted_job().plain()


class RunningJob:
    """A job that runs for `lifetime` polls, or until it is cancelled."""

    def __init__(self, lifetime=2, refuses_cancel=False):
        self.left, self.refuses_cancel, self.cancelled = lifetime, refuses_cancel, False
        self.written = []

    def get(self, job_id, within_seconds=None):
        self.left -= 1
        state = "CANCELLED" if self.cancelled else "RUNNING" if self.left > 0 else "DONE"
        return dataflow_job(job_id, "n-12345678", f"JOB_STATE_{state}")

    def counts(self, job_id, *, running):
        return Counts(rows=10, answered=5, cost_nano_usd=2 * NANO)

    def error_messages(self, job_id):
        return []

    def files(self, uri):
        return self

    def write(self, uri, text, within_seconds):
        self.written.append(uri)

    def cancel(self, job_id):
        if self.refuses_cancel:
            raise CloudUnavailableError("Google Cloud did not cancel job 'job-1' (HTTP 503).")
        self.cancelled = True


@pytest.fixture
def trigger(monkeypatch):
    """Makes a trigger that polls a job of this test without delays."""
    monkeypatch.setattr(JobTrigger, "first_poll_delay_seconds", 0.0)
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.monitor.CANCELLING_SECONDS", 0.0)
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.cancellation.DRAIN_SECONDS", 0.0)

    def make(client, **arguments):
        made = JobTrigger(**{"job": JOB, "poll_interval_seconds": 0.01, **arguments})
        made._connect = lambda: client
        return made

    return make


async def first_event(trigger):
    (payload,) = [event.payload async for event in trigger.run()]
    return JobResult.from_event(json.loads(json.dumps(payload)))


def test_a_trigger_round_trips_through_its_serialised_arguments():
    made = JobTrigger(
        job=JOB,
        gcp_conn_id="acme",
        impersonation_chain=("a@x.iam", "b@x.iam"),
        poll_interval_seconds=12,
        budget_usd=7.5,
    )
    path, arguments = made.serialize()
    name, _, attribute = path.rpartition(".")
    again = getattr(importlib.import_module(name), attribute)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)
    assert arguments["impersonation_chain"] == ["a@x.iam", "b@x.iam"]


def test_a_trigger_uses_the_connection_of_the_task(monkeypatch):
    monkeypatch.setenv("AIRFLOW_CONN_ACME", '{"conn_type": "google_cloud_platform"}')
    hook = JobTrigger(job=JOB, gcp_conn_id="acme", impersonation_chain="a@x.iam")._connect()
    assert (hook.project, hook.location) == ("acme-prod", "europe-west1")
    assert (hook.gcp_conn_id, hook.impersonation_chain) == ("acme", "a@x.iam")


def test_a_trigger_fires_once_when_the_job_has_ended(trigger):
    ended = asyncio.run(first_event(trigger(RunningJob())))
    assert (ended.outcome, ended.job_id, ended.state) == ("succeeded", "job-1", "JOB_STATE_DONE")


def test_a_trigger_stops_and_cancels_a_job_over_its_budget_and_reports_it(trigger):
    job = RunningJob(lifetime=99)
    ended = asyncio.run(first_event(trigger(job, budget_usd=1.0)))
    assert job.cancelled
    assert job.written == ["gs://rows/stop"]
    assert ended.error_type == "BudgetExceededError"


def test_on_kill_cancels_the_job_at_once_as_it_has_about_a_second(trigger, in_state, capfd):
    job = RunningJob()
    asyncio.run(in_state(trigger(job), "failed").on_kill())
    assert job.cancelled
    assert job.written == []
    lines = capfd.readouterr().out
    assert "The task was marked or cleared while deferred. Dataflow job 'job-1' was cancelled." in lines
    assert "gs://rows/journal/" in lines


def test_on_kill_leaves_the_job_if_another_triggerer_has_taken_the_trigger_over(trigger, in_state, capfd):
    job = RunningJob()
    asyncio.run(in_state(trigger(job), "deferred").on_kill())
    assert not job.cancelled
    assert "was cancelled" not in capfd.readouterr().out


def test_on_kill_reports_a_job_that_keeps_running_as_billing(trigger, in_state, capfd):
    job = RunningJob()
    asyncio.run(in_state(trigger(job, job=submitted_job(cancel_on_kill=False).plain()), "failed").on_kill())
    assert not job.cancelled
    lines = capfd.readouterr().out
    assert "left running and billing" in lines
    assert "gcloud dataflow jobs cancel job-1" in lines


def test_a_failed_cancellation_logs_the_command_that_cancels_the_job(trigger, in_state, capfd):
    asyncio.run(in_state(trigger(RunningJob(refuses_cancel=True)), "failed").on_kill())
    lines = capfd.readouterr().out
    assert "may still be running and billing" in lines
    assert "gcloud dataflow jobs cancel job-1" in lines


def test_a_stopped_triggerer_does_not_cancel_the_job(trigger):
    job = RunningJob(lifetime=10_000)

    async def stopped():
        made = trigger(job)
        running = asyncio.ensure_future(first_event(made))
        while job.left == 10_000:  # noqa: ASYNC110 - the job knows no event loop
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await made.cleanup()

    asyncio.run(stopped())
    assert not job.cancelled


def test_a_trigger_resumes_in_another_triggerer(trigger):
    job = RunningJob(lifetime=3)

    async def moved():
        before = trigger(job)
        running = asyncio.ensure_future(first_event(before))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        after = trigger(job)
        return await first_event(after)

    assert asyncio.run(moved()).outcome == "succeeded"
