from __future__ import annotations

import dataclasses
import itertools
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.pacing.governor import Governor, GovernorState
from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from bench.jobs import JOBS
from bench.simulation.bounds import step_down_and_up, step_to_half
from bench.simulation.simulator import simulate, simulate_job

gaps = st.lists(st.floats(0, 3), min_size=1, max_size=120)


def send_all(governor: Governor, arrivals: list[float], tokens: list[float]) -> list[float]:
    """Returns the times at which requests are sent that arrive one after the other and wait for admission."""
    left, now = [], 0.0
    for gap, cost in zip(arrivals, tokens, strict=True):
        now += gap
        while (wait := governor.admit(now, cost)) > 0:
            now += wait
        left.append(now)
    return left


@given(gaps, st.floats(1, 6000))
def test_no_window_has_more_requests_than_the_quota_and_the_credit(arrivals, per_minute):
    governor = Governor(requests_per_minute=per_minute)
    left = send_all(governor, arrivals, [1.0] * len(arrivals))
    rate = per_minute / 60
    for first, start in enumerate(left):
        for last in range(first, len(left)):
            window = left[last] - start
            allowed = 1 + rate * (window + Governor.REQUEST_CREDIT_SECONDS)
            assert last - first + 1 <= allowed + 1e-6


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 500)), min_size=1, max_size=80), st.floats(600, 60_000))
def test_no_window_has_more_tokens_than_the_quota_the_credit_and_one_prompt(arrivals, per_minute):
    governor = Governor(tokens_per_minute=per_minute)
    costs = [cost for _, cost in arrivals]
    left = send_all(governor, [gap for gap, _ in arrivals], costs)
    rate = per_minute / 60
    for first, start in enumerate(left):
        for last in range(first, len(left)):
            window = left[last] - start
            allowed = rate * (window + Governor.TOKEN_CREDIT_SECONDS) + max(costs[first : last + 1])
            assert sum(costs[first : last + 1]) <= allowed + 1e-3


@given(
    st.lists(st.tuples(st.floats(0, 0.3), st.floats(0, 1)), min_size=1, max_size=200),
    st.sampled_from(["requests_per_minute", "tokens_per_minute"]),
    st.floats(600, 60_000),
)
@example([(0.05, 0.0), (0.05, 0.4)] * 100, "requests_per_minute", 600)
def test_callers_whose_clock_is_behind_that_of_others_get_no_more_than_the_quota(calls, limit, per_minute):
    """A process reads the clock, and waits for the others: three times the quota were admitted."""
    governor, start, admitted = Governor(**{limit: per_minute}), 100.0, 0
    clock = start
    for gap, late in calls:
        clock += gap
        admitted += governor.admit(clock - late, 1.0) == 0
    seconds = clock - start + 1 + Governor.TOKEN_CREDIT_SECONDS  # the first call may be a second late
    assert admitted <= 1 + per_minute / 60 * seconds


@given(
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(["send", "429", "429 for 3 s", "answer"])), max_size=80),
    st.floats(1, 6000),
    st.none() | st.floats(600, 1e6),
    st.integers(1, 16),
)
def test_no_request_waits_forever_regardless_of_the_history(events, requests, tokens, workers):
    governor = Governor(requests_per_minute=requests, tokens_per_minute=tokens, expected_workers=workers)
    now = 0.0
    for gap, event in events:
        now += gap
        match event:
            case "send":
                governor.admit(now, 10)
            case "429":
                governor.rejected(now, Rejection())
            case "429 for 3 s":
                governor.rejected(now, Rejection(3.0))
            case "answer":
                governor.settle(0, 0, is_answered=True)
    waits = 0
    while (wait := governor.admit(now, 10)) > 0:
        assert wait > 1e-12
        now += wait
        waits += 1
        assert waits < 1000
    assert all(value == value and abs(value) < 1e12 for value in dataclasses.astuple(governor.state))


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=50))
def test_reserve_and_refund_balance_to_zero(requests):
    governor = Governor(tokens_per_minute=60_000)
    governor.admit(0.0, 0)
    before = governor.state.tokens
    for reserved, used in requests:
        governor.state.tokens -= reserved
        governor.settle(reserved, used)
    assert governor.state.tokens == pytest.approx(before - sum(used for _, used in requests))


def test_requests_are_spaced_not_sent_in_a_burst():
    left = send_all(Governor(requests_per_minute=600), [0.0] * 50, [1.0] * 50)
    assert left[3:] == pytest.approx([left[3] + 0.1 * number for number in range(47)])


def test_a_prompt_larger_than_the_credit_is_admitted_once_the_credit_is_full():
    governor = Governor(tokens_per_minute=60_000)  # 1,000 a second
    assert governor.admit(0.0, 900) == 0
    assert governor.admit(0.0, 5000) == pytest.approx(0.9)
    assert governor.admit(0.9, 5000) == 0
    assert governor.admit(0.9, 1) == pytest.approx(4.001)


def test_all_requests_are_held_for_the_retry_delay_of_the_server():
    governor = Governor(requests_per_minute=600)
    governor.admit(0.0, 1)
    assert governor.rejected(1.0, Rejection(7.5)) == 7.5
    assert governor.admit(2.0, 1) == 6.5
    assert governor.admit(8.5, 1) == 0


def test_a_shorter_hold_does_not_end_a_longer_one():
    governor = Governor(requests_per_minute=600)
    governor.rejected(0.0, Rejection(10.0))
    governor.rejected(1.0, Rejection(1.0))
    assert governor.admit(2.0, 1) == 8.0


def test_machines_that_were_rejected_together_resume_at_most_one_gap_apart():
    governor = Governor(requests_per_minute=600)
    assert governor.rejected(0.0, Rejection(2.0, chance=1.0)) == pytest.approx(2.1, abs=0.02)


def test_a_retry_delay_of_zero_is_replaced_by_the_first_hold():
    assert Governor(requests_per_minute=600).rejected(0.0, Rejection(0.0)) == Governor.FIRST_HOLD_SECONDS


def test_a_retry_delay_of_a_day_is_replaced_by_the_longest_hold():
    assert Governor(requests_per_minute=600).rejected(0.0, Rejection(86_400.0)) == Governor.LONGEST_HOLD_SECONDS


def test_a_429_without_a_retry_delay_doubles_the_hold_until_a_request_is_answered():
    governor = Governor(requests_per_minute=600)
    holds, now = [], 0.0
    for _ in range(4):
        holds.append(governor.rejected(now, Rejection()))
        assert governor.rejected(now + 0.01, Rejection()) >= holds[-1], (
            "under way when the hold began: no further sign"
        )
        now = governor.state.held_until + 0.1
    assert holds == pytest.approx([0.3, 0.6, 1.2, 2.4])
    governor.settle(0, 0, is_answered=True)
    assert governor.rejected(now, Rejection()) == pytest.approx(0.3)


def test_one_overload_cuts_the_share_once_however_many_429s_it_brings():
    governor = Governor(requests_per_minute=600)
    governor.admit(0.0, 1)
    for number in range(20):
        governor.rejected(10 + number * 0.05, Rejection(0.5))
    assert governor.state.share == pytest.approx(Governor.CUT, abs=0.01)


def test_overloads_that_follow_each_other_closely_cut_deeper():
    governor = Governor(requests_per_minute=600)
    governor.admit(0.0, 1)
    shares = []
    for number in range(5):
        governor.rejected(10.0 + 3 * number, Rejection(0.5))
        shares.append(governor.state.share)
    ratios = [after / before for before, after in itertools.pairwise([1.0, *shares])]
    assert ratios == pytest.approx([0.92, *[0.92**2] * 4], abs=0.02)


def let_through(governor, start, *, sends, tokens=1.0, gap=0.0):
    """Simulates a server that admits `sends` requests from `start` on, at most one per gap, then rejects one."""
    now = start
    for _ in range(sends + 1):
        now += gap
        while (wait := governor.admit(now, tokens)) > 0:
            now += wait
    governor.rejected(now, Rejection())
    return now


def test_a_429_that_follows_another_closely_cuts_to_what_was_let_through_since():
    governor = Governor(requests_per_minute=6000)
    first = let_through(governor, 0.0, sends=500)
    second = let_through(governor, first, sends=60, gap=0.015)
    assert governor.state.share == pytest.approx(60 / (second - first) / 100)
    assert 0.5 < governor.state.share < 0.7


def test_an_isolated_429_cuts_a_little_however_few_were_let_through_since():
    governor = Governor(requests_per_minute=6000)
    now = let_through(governor, 0.0, sends=100)
    for second in range(600):
        governor.admit(now + second, 1)
    assert governor.state.share == 1
    let_through(governor, now + 600, sends=10)
    assert governor.state.share == pytest.approx(0.92**2)


def test_a_new_overload_is_noticed_at_once_when_requests_were_let_through_since_the_last():
    governor = Governor(requests_per_minute=6000)
    first = let_through(governor, 0.0, sends=100)
    before = governor.state.share
    assert let_through(governor, first, sends=20) < first + Governor.CUT_SECONDS
    assert governor.state.share < 0.9 * before


def test_the_tighter_limit_of_requests_and_tokens_measures_the_admitted_share():
    governor = Governor(requests_per_minute=600_000, tokens_per_minute=60_000)
    first = let_through(governor, 0.0, sends=500, tokens=10)
    second = let_through(governor, first, sends=60, tokens=10, gap=0.015)
    assert governor.state.share == pytest.approx(610 / (second - first) / 1000)
    assert 0.5 < governor.state.share < 0.7


def seconds_to_double(usual_share):
    governor = Governor(requests_per_minute=6000)
    governor.rejected(0.0, Rejection())
    governor.state.share, governor.state.usual_share = 0.25, usual_share
    now = 0.0
    while governor.state.share < 0.5:
        now += 0.5
        governor.admit(now, 1)
    return now


def test_a_share_far_below_the_usual_one_is_reclaimed_sooner():
    assert seconds_to_double(usual_share=1.0) < 7
    assert seconds_to_double(usual_share=0.25) > 14


def test_a_day_without_work_does_not_cause_an_overflow():
    governor = Governor(requests_per_minute=6000)
    governor.admit(0.0, 1)
    governor.rejected(0.0, Rejection())
    assert governor.admit(86_400.0, 1) == 0
    assert governor.state.share <= 1


def test_the_share_of_machines_that_left_is_taken_over():
    governor = Governor(requests_per_minute=600, expected_workers=4)
    governor.admit(0.0, 1)
    governor.rejected(1.0, Rejection(0.5))
    for second in range(2, 600):
        governor.admit(float(second), 1)
    assert governor.state.share == 1.0


def test_the_share_follows_the_number_of_machines_and_what_was_learned():
    governor = Governor(requests_per_minute=600)
    governor.share_among(4)
    assert (governor.state.share, governor.state.usual_share) == (0.25, 0.25)
    governor.state.share = 0.2  # as after some 429s
    governor.share_among(4)
    governor.share_among(5)
    assert governor.state.share == pytest.approx(0.16)
    governor.share_among(1)
    assert governor.state.share == pytest.approx(0.8)
    governor.share_among(0.5)
    assert governor.state.share == 1.0


def test_the_stated_quota_is_never_exceeded_however_few_429s_there_are():
    governor = Governor(requests_per_minute=600)
    for second in range(3600):
        governor.admit(float(second), 1)
    assert governor.state.share == 1.0


def test_a_limit_of_tokens_alone_does_not_limit_requests():
    governor = Governor(tokens_per_minute=6e9)
    left = send_all(governor, [0.0] * 500, [1.0] * 500)
    assert left[-1] <= 0.5


def test_a_state_fits_a_record_of_doubles():
    state = Governor(requests_per_minute=600).state
    fields = dataclasses.fields(GovernorState)
    record = struct.pack(f"{len(fields)}d", *dataclasses.astuple(state))
    assert GovernorState(*struct.unpack(f"{len(fields)}d", record)) == state


@pytest.mark.parametrize(("expected_workers", "most_rejected"), [(4, 0.01), (16, 0.005)])
def test_machines_without_shared_state_use_a_quota_with_few_429s(expected_workers, most_rejected):
    """Hours, and more machines: `python -m bench.simulation --bounds`."""
    found = simulate(
        lambda: Governor(requests_per_minute=600, expected_workers=expected_workers),
        machines=4,
        requests_per_minute=600,
        seconds=900,
    )
    assert found.utilisation_ratio > 0.99
    assert found.rejected_ratio < most_rejected
    assert found.jain > 0.8


def test_a_quota_that_steps_down_and_up_is_used_with_few_429s():
    figures = step_down_and_up(0)
    assert figures["answered_ratio"] == 1
    assert figures["utilisation"] >= 0.94
    assert figures["rejected_ratio"] <= 0.008


def test_a_step_to_half_costs_at_most_10_429s_and_the_step_back_is_taken_within_12_seconds():
    found = step_to_half(18)
    assert found["rejected"] <= 10
    assert found["used"] >= 0.95
    assert found["seconds"] <= 12


@pytest.mark.parametrize("letter", ["E", "F"])
@pytest.mark.parametrize("processes", [1, 4])
def test_a_known_quota_that_processes_share_is_never_exceeded(letter, processes):
    job = next(job for job in JOBS if job.letter == letter)
    records = simulate_job(job, processes=processes)
    assert sum(record.is_billed for record in records) == len(records) == job.rows


def test_machines_without_shared_state_share_a_quota_of_tokens_with_few_429s():
    records = simulate_job(next(job for job in JOBS if job.letter == "F"), machines=2)
    assert sum(not record.is_billed for record in records) < 0.02 * len(records)


@pytest.mark.parametrize("used_tokens", [10**6, 2 * 10**7, 10**12, 2**63, 1e300])
def test_a_reported_usage_stalls_a_machine_for_a_minute_at_most(used_tokens):
    governor = Governor(tokens_per_minute=60_000)
    governor.admit(0.0, 1000)
    for _ in range(20):
        governor.settle(1000, used_tokens, is_answered=True)
    assert governor.admit(0.0, 500) == pytest.approx(60.5, abs=0.1)
    assert governor.admit(60.6, 500) == 0


def test_a_reported_usage_says_little_about_the_quota():
    """A 429 cuts the share to what was let through, and the tokens are those of the server."""
    governor = Governor(tokens_per_minute=60_000)
    for number in range(10):
        governor.admit(float(number), 100)
        governor.settle(100, 10**12, is_answered=True)
    assert governor.state.sent_tokens <= 70_000, "a minute of the quota, and what came in since"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "429", "usage"]), st.floats(0, 60), st.integers(0, 2**63), st.floats(0, 1e9)
        ),
        max_size=60,
    ),
    st.none() | st.floats(1, 6000),
    st.none() | st.floats(600, 1e6),
)
def test_no_server_stalls_a_machine_for_longer_than_its_holds(events, requests, tokens):
    """Polling, as jobs that wait do, must not prolong the wait."""
    governor = Governor(requests_per_minute=requests, tokens_per_minute=tokens)
    now = 0.0
    for event, gap, used, advice in events:
        now += gap
        match event:
            case "send":
                governor.admit(now, 10)
            case "429":
                governor.rejected(now, Rejection(advice))
            case "usage":
                governor.settle(10, used, is_answered=True)
    start = now
    while (wait := governor.admit(now, 10)) > 0:
        now += min(wait, 10.0)
        assert now - start < 3600


def test_the_wait_for_the_next_request_follows_a_share_that_grows_again():
    """Once it was fixed for hours, when the share was smallest."""
    governor = Governor(requests_per_minute=60)
    governor.admit(0.0, 1)
    governor.state.share, governor.state.cut_at, governor.state.is_probing = 1e-4, -1e4, 0.0
    governor.admit(1.0, 1)
    now = 1.0
    while (wait := governor.admit(now, 1)) > 0:
        now += min(wait, 1.0)
    assert now < 1200
