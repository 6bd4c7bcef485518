from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError
from airflow_provider_llmbeam.jobs.monitor import JobMonitor
from airflow_provider_llmbeam.jobs.state_machine import JobStateMachine
from airflow_provider_llmbeam.polling.poller import Wait, poll_until_result
from airflow_provider_llmbeam.spec.protocol.counts import NANO, Counts
from airflow_provider_llmbeam.spec.remote_job import RemoteJob
from tests.unit.jobs.values import dataflow_job, submitted_job


class ScriptedDataflow:
    """Returns one state per poll and raises the errors among them. A cancelled job ends at the second poll."""

    def __init__(self, *states, counts=(), messages=(), refuses_cancel=False):
        self.states, self.counted, self.messages = list(states), list(counts), messages
        self.refuses_cancel = refuses_cancel
        self.cancelled, self.polled, self.written = [], [], []

    def get(self, job_id, within_seconds=None):
        if within_seconds is not None:  # not a poll
            return dataflow_job(job_id, "n-12345678", "JOB_STATE_RUNNING")
        self.polled.append(job_id)
        state = self.states.pop(0)
        if isinstance(state, Exception):
            raise state
        return state if isinstance(state, RemoteJob) else dataflow_job(job_id, "n-12345678", f"JOB_STATE_{state}")

    def counts(self, job_id, *, running):
        counts = self.counted.pop(0) if self.counted else Counts()
        if isinstance(counts, Exception):
            raise counts
        return counts

    def error_messages(self, job_id):
        if isinstance(self.messages, Exception):
            raise self.messages
        return self.messages

    def files(self, uri):
        return self

    def write(self, uri, text, within_seconds):
        self.written.append(uri)

    def cancel(self, job_id):
        self.cancelled.append(job_id)
        if self.refuses_cancel:
            raise CloudUnavailableError("Google Cloud did not cancel it.")
        self.states[:0] = ["CANCELLING", "CANCELLED"]


@pytest.fixture(autouse=True)
def no_drain(monkeypatch):
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.cancellation.DRAIN_SECONDS", 0.0)


class Waiting:
    """Wait for a scripted job, with a simulated clock."""

    def __init__(self, dataflow, *, interval=30.0, budget_usd=None):
        self.now, self.waits, self.lines = 0.0, [], []
        self.monitor = JobMonitor(
            lambda: dataflow,
            submitted_job(),
            machine=JobStateMachine(interval, budget_usd),
            log=self,
            now=lambda: self.now,
        )

    def log(self, level, event, *args):
        self.lines.append(event % args)

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds

    def run(self):
        return poll_until_result(self.monitor, self.sleep)


def test_a_job_is_waited_for_until_it_is_done():
    waiting = Waiting(ScriptedDataflow("QUEUED", "PENDING", "RUNNING", "RUNNING", "DONE"))
    ended = waiting.run()
    assert (ended.outcome, ended.state, ended.error) == ("succeeded", "JOB_STATE_DONE", None)
    assert waiting.waits == [30] * 4


def test_each_state_is_logged_once():
    waiting = Waiting(ScriptedDataflow("PENDING", "RUNNING", "RUNNING", "DONE"))
    waiting.run()
    assert waiting.lines == [
        f"Dataflow job 'job-1' is in state JOB_STATE_{state}." for state in ("PENDING", "RUNNING", "DONE")
    ]


def test_progress_is_logged_while_it_changes():
    counts = [Counts(rows=10), Counts(rows=10, answered=6), Counts(rows=10, answered=6)]
    waiting = Waiting(ScriptedDataflow("RUNNING", "RUNNING", "RUNNING", "DONE", counts=[*counts, counts[-1]]))
    waiting.run()
    assert [line.split(" · ")[0] for line in waiting.lines if "rows" in line] == [
        "rows 0/10 (0%)",
        "rows 6/10 (60%)",
    ]


def test_a_temporary_outage_is_waited_for():
    down = CloudUnavailableError("Google Cloud did not show job 'job-1' (HTTP 503).")
    waiting = Waiting(ScriptedDataflow("RUNNING", down, down, down, "RUNNING", "DONE"))
    assert waiting.run().outcome == "succeeded"
    assert waiting.waits == [30, 30, 60, 120, 30]


def test_a_reply_of_an_unexpected_form_is_polled_again():
    waiting = Waiting(ScriptedDataflow("RUNNING", KeyError("currentState"), "DONE"))
    assert waiting.run().outcome == "succeeded"
    assert any(line.startswith("Polling failed with KeyError: 'currentState'.") for line in waiting.lines)


def test_a_permanent_outage_ends_the_wait_without_a_cancellation():
    dataflow = ScriptedDataflow("RUNNING", *[CloudUnavailableError("HTTP 503.")] * 99)
    ended = Waiting(dataflow).run()
    assert ended.outcome == "unreachable"
    assert dataflow.cancelled == []
    assert "gcloud dataflow jobs cancel job-1 --region=europe-west1 --project=acme-prod" in ended.message


def test_a_failed_job_reports_its_errors():
    ended = Waiting(ScriptedDataflow("FAILED", messages=["ValueError: no"])).run()
    assert "ValueError: no" in ended.message


def test_a_failed_job_whose_messages_cannot_be_read_is_a_failed_job():
    ended = Waiting(ScriptedDataflow("FAILED", messages=CloudUnavailableError("HTTP 503."))).run()
    assert ended.error_type == "JobFailedError"
    assert "HTTP 503." in ended.message


def test_a_replaced_job_is_followed():
    updated = dataflow_job("job-1", "n-12345678", "JOB_STATE_UPDATED", replaced_by="job-2")
    dataflow = ScriptedDataflow("RUNNING", updated, "RUNNING", "DONE")
    ended = Waiting(dataflow).run()
    assert ended.job_id == "job-2"
    assert dataflow.polled == ["job-1", "job-1", "job-2", "job-2"]


def test_a_job_over_its_budget_is_cancelled_and_waited_for():
    dataflow = ScriptedDataflow("RUNNING", "RUNNING", counts=[Counts(), Counts(cost_nano_usd=2 * NANO)])
    waiting = Waiting(dataflow, budget_usd=1.5)
    ended = waiting.run()
    assert (dataflow.written, dataflow.cancelled) == (["gs://rows/stop"], ["job-1"])
    assert (ended.outcome, ended.error_type) == ("over_budget", "BudgetExceededError")
    assert waiting.waits == [30, 10, 10]


def test_a_refused_cancellation_is_requested_again_up_to_a_time_limit():
    dataflow = ScriptedDataflow(*["RUNNING"] * 200, counts=[Counts(cost_nano_usd=2 * NANO)], refuses_cancel=True)
    ended = Waiting(dataflow, budget_usd=1.5).run()
    assert len(dataflow.cancelled) > 10
    assert ended.outcome == "over_budget"
    assert "may still be running and billing" in ended.message


def test_with_a_budget_a_poll_without_counters_fails():
    dataflow = ScriptedDataflow(*["RUNNING"] * 9, counts=[AccessDeniedError("HTTP 403.")] * 9)
    assert Waiting(dataflow, budget_usd=1.5).run().outcome == "unreachable"


def test_without_a_budget_unreadable_counters_are_logged_once():
    dataflow = ScriptedDataflow("RUNNING", "RUNNING", "DONE", counts=[AccessDeniedError("HTTP 403.")] * 3)
    waiting = Waiting(dataflow)
    assert waiting.run().outcome == "succeeded"
    assert len([line for line in waiting.lines if "HTTP 403." in line]) == 1


def test_an_unknown_state_is_logged_once():
    waiting = Waiting(ScriptedDataflow("DREAMING", "DREAMING", "DONE"))
    waiting.run()
    assert len([line for line in waiting.lines if "does not know" in line]) == 1


@pytest.mark.parametrize("interval", [10, 30, 3600])
def test_a_poll_returns_the_wait(interval):
    assert Waiting(ScriptedDataflow("RUNNING"), interval=interval).monitor.poll() == Wait(interval)
