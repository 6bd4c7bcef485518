from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.batch_inference.decide import (
    CANCEL_SECONDS,
    MAX_POLL_SECONDS,
    MAX_SUBMITS,
    MIN_POLL_SECONDS,
    ONLINE_MARGIN,
    BatchPlan,
    Cancel,
    FileState,
    Finish,
    MonitorHistory,
    Submit,
    Wait,
    decide,
)
from airflow_provider_llmbeam.providers.batch import ENDED, BatchJob

NOW = 1_800_000_000.0
HOUR = 3600.0
NONE = MonitorHistory()


def plan(**changes):
    usual = {"started_at": NOW, "deadline_at": None, "max_wait_seconds": 24 * HOUR, "online_seconds": HOUR}
    return BatchPlan(**usual | changes)


def job(phase="running", **changes):
    return BatchJob(name="n", display_name="a", state=phase.upper(), phase=phase, created_at=NOW, **changes)


def file(name="a", phase=None, rows=100, submits=None, **changes):
    found = None if phase is None else job(phase, **changes)
    return FileState(
        display_name=name, rows=rows, job=found, submits=int(phase is not None) if submits is None else submits
    )


def decided(files, now=NOW, history=NONE, room=None, **changes):
    return decide(files, plan(**changes), history, now, room=room)[0]


def test_no_more_files_are_submitted_than_the_provider_takes():
    files = [file("a"), file("b"), file("c")]
    assert decided(files, room=2) == Submit(("a", "b"))
    assert isinstance(decided([*files, file("d", "running")], room=0), Wait)


def test_the_file_that_was_submitted_longest_ago_comes_first():
    """One with more tokens than the provider takes would keep the others back."""
    earlier, later = (
        replace(file(name, "failed", submits=0), job=replace(job("failed"), created_at=NOW + seconds))
        for name, seconds in (("a", 1.0), ("b", 2.0))
    )
    assert decided([later, earlier], room=1) == Submit(("a",))


@pytest.mark.parametrize(("age", "seconds"), [(0, MIN_POLL_SECONDS), (1000, 100), (20 * HOUR, MAX_POLL_SECONDS)])
def test_young_jobs_are_polled_often_and_old_ones_rarely(age, seconds):
    assert decided([file("a", "running")], now=NOW + age).seconds == seconds


def test_the_last_wait_ends_when_the_rest_has_to_be_sent_online():
    deadline = NOW + 10 * HOUR
    switch = deadline - HOUR * ONLINE_MARGIN - CANCEL_SECONDS
    assert decided([file("a", "running")], now=switch - 7, deadline_at=deadline).seconds == 7
    found = decided([file("a", "running")], now=switch, deadline_at=deadline)
    assert isinstance(found, Cancel)
    assert "finish_by" in found.reason


def test_without_an_online_time_half_of_the_time_is_kept_for_it():
    changes = {"deadline_at": NOW + 10 * HOUR, "online_seconds": None}
    assert isinstance(decided([file("a", "running")], now=NOW + 4.9 * HOUR, **changes), Wait)
    assert isinstance(decided([file("a", "running")], now=NOW + 5 * HOUR, **changes), Cancel)


def test_the_longest_wait_ends_without_a_deadline_too():
    found = decided([file("a", "queued")], now=NOW + 24 * HOUR)
    assert isinstance(found, Cancel)
    assert "max_batch_wait_seconds" in found.reason


def test_the_message_has_rows_and_states():
    files = [file("a", "running", answered=40), file("b", "queued"), file("c")]
    found = decided(files, room=0)
    assert found.message == (
        "Batch inference: 40 of 300 rows answered; jobs: 1 queued, 1 running, 1 not submitted yet."
    )


def test_batch_inference_pays_only_where_there_is_time_for_it():
    assert plan().pays(NOW)
    assert plan(deadline_at=NOW + 3 * HOUR).pays(NOW)
    assert not plan(deadline_at=NOW + 1.3 * HOUR).pays(NOW)


phases = st.sampled_from(["queued", "running", "cancelling", *sorted(ENDED)])
files_of = st.lists(
    st.builds(
        lambda name, phase, rows, submits: file(name, phase, rows, max(submits, int(phase is not None))),
        st.sampled_from("abcdef"),
        st.none() | phases,
        st.integers(1, 1000),
        st.integers(0, MAX_SUBMITS),
    ),
    unique_by=lambda each: each.display_name,
    min_size=1,
)


@given(
    files=files_of,
    age=st.floats(0, 48 * HOUR),
    deadline=st.none() | st.floats(0, 48 * HOUR),
    room=st.none() | st.integers(0, 3),
)
def test_only_running_jobs_are_cancelled_and_only_files_without_one_submitted(files, age, deadline, room):
    deadline_at = None if deadline is None else NOW + deadline
    match decided(files, now=NOW + age, deadline_at=deadline_at, room=room):
        case Cancel(names):
            assert all(each.job and not each.job.has_ended for each in files if each.display_name in names)
        case Submit(names):
            for each in files:
                if each.display_name in names:
                    assert each.job is None or each.job.phase == "failed"
                    assert each.submits < MAX_SUBMITS
        case Wait(seconds):
            assert 0 < seconds <= MAX_POLL_SECONDS
        case Finish(_, may_bill):
            assert set(may_bill) <= {each.display_name for each in files if each.job and not each.job.has_ended}


@given(
    ends=st.lists(st.tuples(st.floats(0, 40 * HOUR), st.sampled_from(sorted(ENDED))), min_size=1, max_size=5),
    deadline=st.floats(2 * HOUR, 30 * HOUR),
    online=st.floats(1, HOUR),
    obeys=st.booleans(),
)
def test_the_rest_is_sent_online_in_time_whatever_the_jobs_do(ends, deadline, online, obeys):
    """Simulates the loop: the answers of the jobs come at any time, and cancellations are obeyed or not."""
    states = {f"f{number}": end for number, end in enumerate(ends)}
    jobs, submits, cancelled = {}, dict.fromkeys(states, 0), {}
    now, history = NOW, NONE
    limits = plan(deadline_at=NOW + deadline, online_seconds=online)
    for _ in range(10_000):
        for name, (seconds, phase) in states.items():
            if name in jobs and obeys and name in cancelled:
                jobs[name] = job("cancelled")
            elif name in jobs and now >= jobs[name].created_at + seconds and not jobs[name].has_ended:
                jobs[name] = replace(jobs[name], phase=phase)
        files = [
            FileState(display_name=name, rows=10, job=jobs.get(name), submits=submits[name]) for name in states
        ]
        found, history = decide(files, limits, history, now)
        match found:
            case Submit(names):
                for name in names:
                    assert submits[name] < MAX_SUBMITS
                    submits[name] += 1
                    jobs[name] = replace(job("queued"), created_at=now)
            case Cancel(names):
                cancelled.update(dict.fromkeys(names, now))
            case Wait(seconds):
                now += seconds
            case Finish():
                break
    unanswered = sum(each.job is None or each.job.phase not in ("succeeded", "partial") for each in files)
    assert isinstance(found, Finish)
    assert now + online * unanswered / len(files) <= limits.deadline_at + 1e-6


def test_a_deadline_that_never_comes_is_none():
    assert plan().switch_at(1.0) == NOW + 24 * HOUR
    assert math.isfinite(plan(deadline_at=NOW).switch_at(1.0))


def test_rows_of_a_succeeded_job_that_have_no_answer_need_time_online():
    files = [file("a", "succeeded", answered=0), file("b", "running")]
    deadline = NOW + 10 * HOUR
    switch = deadline - HOUR * ONLINE_MARGIN - CANCEL_SECONDS
    assert isinstance(decided(files, now=switch, deadline_at=deadline), Cancel)


def test_while_a_submission_is_in_doubt_its_file_is_not_submitted_again_and_others_are():
    doubt = FileState(display_name="a", rows=100, is_in_doubt=True)
    assert decided([doubt, file("b")]) == Submit(("b",))
    assert isinstance(decided([doubt, file("b", "succeeded")]), Wait)


def test_past_the_deadline_a_submission_in_doubt_is_not_cancelled_and_may_bill():
    doubt = FileState(display_name="a", rows=100, is_in_doubt=True)
    later = NOW + 24 * HOUR
    assert decided([doubt], now=later).may_bill == ("a",)
    assert decided([doubt, file("b", "running")], now=later).display_names == ("b",)
    waited = MonitorHistory(first_cancelled_at=later - CANCEL_SECONDS)
    assert decided([doubt, file("b", "running")], now=later, history=waited).may_bill == ("b", "a")
