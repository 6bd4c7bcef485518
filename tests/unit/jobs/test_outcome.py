from __future__ import annotations

import json

import pytest

from airflow_provider_llmbeam import exceptions
from airflow_provider_llmbeam.exceptions import (
    BudgetExceededError,
    JobCancelledError,
    JobFailedError,
    JobRefusedError,
    JobUnreachableError,
    TooManyFailedRowsError,
)
from airflow_provider_llmbeam.jobs.outcome import JobResult, failure, job_result
from airflow_provider_llmbeam.jobs.state_machine import JobEnded
from tests.unit.jobs.values import submitted_job

JOURNAL = "gs://rows/state/nightly/journal/"
JOB = submitted_job(id="2026-11-20_01", journal_uri=JOURNAL)
OURS = """Error message from worker: generic::unknown: Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1498, in process
  File "airflow_provider_llmbeam/pipeline/transforms/publish.py", line 77, in check
airflow_provider_llmbeam.exceptions.TooManyFailedRowsError: 12 of 20 rows are dead. [while running 'Report/Check']
"""
THEIRS = """Traceback (most recent call last):
  File "apache_beam/io/gcp/gcsio.py", line 1, in open
OSError: disk full [while running 'Write/Shard']
"""


def end_of(end, messages=(), state="JOB_STATE_FAILED"):
    return job_result(end, JOB, state, messages)


def test_an_error_of_this_package_in_a_traceback_keeps_its_class():
    ended = end_of(JobEnded("failed", "failed."), [OURS] * 4 + ["Workflow failed. Causes: S02 failed."])
    assert type(ended.error) is TooManyFailedRowsError
    assert "12 of 20 rows are dead." in ended.message
    assert "while running" not in ended.message
    assert JOURNAL in ended.message
    assert "a retry sends only the rest" in ended.message


def test_the_journal_is_named_once():
    message = OURS.replace("are dead.", f"are dead. The answers so far are in {JOURNAL!r}.")
    assert str(failure([message], "Job", JOURNAL)).count(JOURNAL) == 1


def test_an_error_that_a_retry_repeats_does_not_promise_one():
    error = failure(["airflow_provider_llmbeam.exceptions.JobRefusedError: no secret 'x'."], "Job", JOURNAL)
    assert type(error) is JobRefusedError
    assert "a cleared task sends only the rest" in str(error)


def test_an_error_before_the_first_request_names_no_answers():
    words = "No column 'x'. Nothing was sent or billed."
    error = failure(
        [OURS.replace("TooManyFailedRowsError: 12 of 20 rows are dead.", f"JobSpecError: {words}")], "J", JOURNAL
    )
    assert str(error) == f"J: {words}"


@pytest.mark.parametrize("name", ["ClassVar", "NoSuchError", "annotations"])
def test_an_unknown_error_name_is_a_failed_job(name):
    assert type(failure([f"airflow_provider_llmbeam.exceptions.{name}: words"], "Job", JOURNAL)) is JobFailedError


def test_the_last_line_of_other_errors_is_quoted_once():
    error = failure([THEIRS] * 4 + ["Workflow failed. Causes: S02:Ask failed."], "Dataflow job 'x'", JOURNAL)
    assert type(error) is JobFailedError
    assert str(error) == (
        "Dataflow job 'x' failed. Its last errors: OSError: disk full | Workflow failed. Causes: S02:Ask failed. "
        f"The answers so far are kept in {JOURNAL!r}; a retry sends only the rest."
    )


def test_long_lines_are_truncated_and_old_lines_omitted():
    error = failure([f"{number} {'x' * 9_000}" for number in range(50)], "Job", JOURNAL)
    assert len(str(error)) < 5 * 500 + 300
    assert "49 x" in str(error)


@pytest.mark.parametrize("messages", [[], [""], ["\n \n"]])
def test_a_job_that_fails_without_a_message_names_the_journal(messages):
    ended = end_of(JobEnded("failed", "failed."), messages)
    assert type(ended.error) is JobFailedError
    assert JOURNAL in ended.message


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (JobEnded("cancelled", "was cancelled."), JobCancelledError),
        (JobEnded("over_budget", "was cancelled: too dear."), BudgetExceededError),
        (JobEnded("unreachable", "could not be polled.", may_run=True), JobUnreachableError),
    ],
)
def test_every_error_names_the_job_and_the_journal(end, error):
    ended = end_of(end, state="")
    assert type(ended.error) is error
    assert "'2026-11-20_01'" in ended.message
    assert JOURNAL in ended.message
    assert (
        "gcloud dataflow jobs cancel 2026-11-20_01 --region=europe-west1 --project=acme-prod" in ended.message
    ) is (end.may_run)


def test_a_finished_job_has_no_error():
    ended = end_of(JobEnded("succeeded", "is done."), state="JOB_STATE_DONE")
    assert ended.error is None
    assert ended.message == "Dataflow job '2026-11-20_01' is done."


def test_a_result_round_trips_through_the_event_of_a_trigger():
    ended = end_of(JobEnded("failed", "failed."), [OURS])
    assert JobResult.from_event(json.loads(json.dumps(ended.to_event()))) == ended


def test_only_a_cancellation_a_spent_budget_drift_a_refusal_and_permanent_failures_are_not_retried():
    errors = (value for value in vars(exceptions).values() if isinstance(value, type))
    lasting = {
        error.__name__ for error in errors if issubclass(error, exceptions.JobError) and not error.retryable
    }
    assert lasting == {
        "JobCancelledError",
        "BudgetExceededError",
        "DriftError",
        "JobRefusedError",
        "PermanentFailureError",
    }
