from __future__ import annotations

import pytest
from google.cloud.dataflow_v1beta3 import JobState
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudNotFoundError, CloudUnavailableError
from airflow_provider_llmbeam.hooks.dataflow import PHASES
from airflow_provider_llmbeam.jobs.state_machine import (
    MAX_DENIED,
    MAX_FAILING_SECONDS,
    MAX_FAILURES,
    MAX_WAIT_SECONDS,
    JobEnded,
    JobStateMachine,
    OverBudget,
)
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import ConsecutiveFailures
from tests.unit.jobs.values import dataflow_job

OUTCOMES = {
    "JOB_STATE_DONE": "succeeded",
    "JOB_STATE_FAILED": "failed",
    "JOB_STATE_CANCELLED": "cancelled",
    "JOB_STATE_DRAINED": "cancelled",
    "JOB_STATE_UPDATED": "failed",
}
RUNNING_STATES = [state.name for state in JobState if state.name not in OUTCOMES]
ERRORS = st.sampled_from((CloudUnavailableError("503"), CloudNotFoundError("404"), AccessDeniedError("403")))


def job(state, **fields):
    return dataflow_job("job-1", "nightly-12345678", state, **fields)


def test_every_state_of_the_client_is_known():
    assert set(PHASES) == {state.name for state in JobState}
    assert len(PHASES) == 15


@pytest.mark.parametrize("state", RUNNING_STATES)
def test_a_running_job_is_waited_for_without_a_message(state):
    assert JobStateMachine(30).on_job(job(state), None, 0) == Wait(30)


@pytest.mark.parametrize(("state", "outcome"), OUTCOMES.items())
def test_a_job_that_has_ended_ends_the_wait(state, outcome):
    decision = JobStateMachine(30).on_job(job(state), None, 0)
    assert isinstance(decision, JobEnded)
    assert decision.outcome == outcome


@given(st.lists(st.tuples(ERRORS, st.floats(0, 7200)), max_size=60), st.floats(10, 3600))
def test_consecutive_failures_always_end_the_wait(errors, interval):
    poller, now = JobStateMachine(interval), 0.0
    for number, (error, pause) in enumerate(errors, 1):
        decision = poller.on_error(error, now)
        if isinstance(decision, JobEnded):
            assert decision.outcome in ("failed", "unreachable")
            return
        assert interval <= decision.seconds <= max(interval, MAX_WAIT_SECONDS)
        assert number < MAX_FAILURES or now - poller.failures.since < MAX_FAILING_SECONDS
        now += max(pause, decision.seconds)
    assert len(errors) < MAX_FAILURES + MAX_FAILING_SECONDS / interval


@given(st.lists(ERRORS, max_size=MAX_DENIED - 1))
def test_a_successful_poll_resets_the_failures(errors):
    poller = JobStateMachine(30)
    for now, error in enumerate(errors):
        poller.on_error(error, now)
    poller.on_job(job("JOB_STATE_RUNNING"), None, 100)
    assert poller.failures == ConsecutiveFailures()


def test_ten_quick_failures_are_not_enough_to_give_up():
    poller = JobStateMachine(30)
    decisions = [poller.on_error(CloudUnavailableError("503"), now) for now in range(20)]
    assert all(isinstance(decision, Wait) for decision in decisions)
    last = poller.on_error(CloudUnavailableError("503"), MAX_FAILING_SECONDS)
    assert last.outcome == "unreachable"
    assert last.may_run
    assert "21 times in a row" in last.reason
    assert "may still be running and billing" in last.reason


def test_a_job_over_its_budget_is_cancelled_until_its_state_shows_it():
    poller = JobStateMachine(30, budget_usd=5)
    assert poller.on_job(job("JOB_STATE_RUNNING"), 5.0, 0) == Wait(30)
    assert poller.on_job(job("JOB_STATE_RUNNING"), 5.01, 30) == OverBudget(5.01)
    assert poller.on_job(job("JOB_STATE_RUNNING"), 5.02, 40) == OverBudget(5.02)
    assert poller.on_job(job("JOB_STATE_CANCELLING"), None, 50) == Wait(10)
    end = poller.on_job(job("JOB_STATE_CANCELLED"), None, 60)
    assert end.outcome == "over_budget"
    assert "$5.02" in end.reason
    assert "$5.00" in end.reason
    assert not end.may_run


def test_a_small_budget_is_not_named_as_nothing():
    ended = JobStateMachine(30, budget_usd=0.0005).on_job(job("JOB_STATE_CANCELLED"), 0.00062, 0)
    assert "cost $0.00062, and `limits.budget_usd` allows $0.0005" in ended.reason


def test_without_a_budget_no_cost_cancels_the_job():
    assert JobStateMachine(30).on_job(job("JOB_STATE_RUNNING"), 1e9, 0) == Wait(30)
