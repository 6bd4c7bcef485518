from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline.batch_inference.token_limit import room_beside, token_limit
from airflow_provider_llmbeam.providers.batch import BatchJob

FULL = (
    "token_limit_exceeded: Enqueued token limit reached for gpt-4o in organization org-1. Limit: 90,000 enqueued "
    "tokens. Please try again once some in_progress batches have been completed."
)


def job(phase, created_at, ended_at=None, error=None):
    return BatchJob(
        name=f"{created_at}",
        display_name=f"{created_at}",
        state=phase,
        phase=phase,
        created_at=created_at,
        ended_at=ended_at,
        error=error,
    )


def over(created_at):
    return job("failed", created_at, created_at, FULL)


@pytest.mark.parametrize(
    ("error", "limit"),
    [(FULL, 90_000), (None, None), ("token_limit_exceeded", None), ("Limit: , enqueued tokens", None)],
)
def test_the_limit_is_read_from_the_error(error, limit):
    assert token_limit(job("failed", 1.0, error=error)) == limit


@pytest.mark.parametrize(
    ("jobs", "room"),
    [
        ([], None),
        ([job("running", 1.0), job("failed", 2.0, 3.0, "server_error")], None),
        ([job("running", 1.0), over(2.0)], 0),
        ([job("succeeded", 1.0, 1.5), job("running", 1.0), over(2.0)], 0),
        ([job("succeeded", 1.0, 3.0), job("running", 1.0), over(2.0)], 2),
        ([job("succeeded", 1.0, 3.0), job("running", 4.0), over(2.0)], 1),
        ([job("succeeded", 1.0, 3.0), job("running", 4.0), job("queued", 4.0), over(2.0)], 0),
        ([job("succeeded", 1.0, 3.0), job("running", 1.0), over(2.0), over(4.0)], 0),
    ],
)
def test_two_jobs_are_submitted_for_each_that_has_ended_since_one_was_over_the_limit(jobs, room):
    assert room_beside(jobs) == room


@pytest.mark.parametrize("ended", [[], [job("succeeded", 1.0, 3.0)]])
def test_one_job_is_submitted_where_only_others_hold_tokens(ended):
    assert room_beside([*ended, over(2.0), over(2.0)]) == 1
