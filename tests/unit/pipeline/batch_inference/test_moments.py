"""Every prefix of the lives of batch-inference jobs: as the table says, also after a kill."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.batch_inference.decide import CANCEL_AGAIN_SECONDS, CANCEL_SECONDS
from tests.unit.pipeline.batch_inference.moments import (
    HOUR,
    KILLS,
    LIVES,
    MINUTE,
    NOW,
    PAGE,
    Job,
    KilledWhen,
    Life,
    Played,
    page_with_table,
    plan_of,
    play,
)

pytestmark = [pytest.mark.promise(2), pytest.mark.promise(4)]
MOMENTS_OF_A_KILL = get_args(KilledWhen)
each_life = pytest.mark.parametrize("life", LIVES, ids=lambda life: life.what)


def paid(played: Played) -> dict[str, str]:
    """Returns the jobs that are paid for, by their names."""
    jobs = (*played.replaced, *played.jobs.values())
    return {job.name: job.state for job in jobs if job.phase != "failed" or job.results}


def latest_end(life: Life) -> float:
    """Returns the time by which a run has ended that is cancelled twice, in seconds."""
    return max(0.0, plan_of(life, NOW).switch_at(0.0) - NOW) + 2 * CANCEL_SECONDS + CANCEL_AGAIN_SECONDS


@each_life
def test_each_moment_has_the_decision_of_the_table(life):
    assert play(life).moments == life.moments


@each_life
def test_a_history_that_was_saved_at_any_moment_decides_the_same(life):
    undisturbed = play(life)
    for poll in undisturbed.begins:
        assert play(life, restored_at=poll) == undisturbed


@each_life
@pytest.mark.parametrize("keeps_history", [True, False], ids=["recorded", "lost"])
def test_a_try_that_is_killed_at_any_moment_leads_to_the_same_jobs(life, keeps_history):
    undisturbed = play(life)
    for poll in undisturbed.begins:
        for when in MOMENTS_OF_A_KILL:
            found = play(life, killed_at=poll, killed_when=when, keeps_history=keeps_history)
            assert paid(found) == paid(undisturbed)
            assert found.seconds <= latest_end(life)


jobs = st.builds(
    lambda minutes, phase, has_results, cancelled_after: Job(
        phases={0: "queued", minutes: phase}, has_results=has_results, cancelled_after=cancelled_after
    ),
    st.floats(0.1, 2000),
    st.sampled_from(["running", "succeeded", "partial", "failed", "cancelled", "expired"]),
    st.booleans(),
    st.sampled_from([0.0, 2.0, 10.0, None]),
)
lives = st.builds(
    lambda files, deadline, takes: Life(
        what="drawn",
        files=dict(zip("abcd", files, strict=False)),
        moments=(),
        plan={"deadline_at": None if deadline is None else NOW + deadline * HOUR},
        takes=takes,
    ),
    st.lists(st.lists(jobs, min_size=1, max_size=2), min_size=1, max_size=4),
    st.none() | st.floats(0, 30),
    st.sampled_from([None, 1, 2]),
)


@given(
    life=lives,
    killed_at=st.none() | st.integers(0, 60),
    when=st.sampled_from(MOMENTS_OF_A_KILL),
    keeps_history=st.booleans(),
    away=st.sampled_from([0.0, MINUTE, HOUR, 30 * HOUR]),
)
def test_whatever_the_jobs_do_no_file_is_paid_for_twice_and_all_ends(life, killed_at, when, keeps_history, away):
    found = play(life, killed_at=killed_at, killed_when=when, keeps_history=keeps_history, away_seconds=away)
    assert [job for job in found.replaced if job.phase != "failed" or job.results] == []
    assert found.seconds <= latest_end(life) + away


def test_the_page_has_the_tables():
    page = PAGE.read_text()
    assert [kill for kill in KILLS.items() if f"| {' | '.join(kill)} |" not in page] == []
    assert page == page_with_table(page), "run python -m tests.unit.pipeline.batch_inference.moments"
