from __future__ import annotations

import dataclasses
import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.governor import Governor, GovernorState
from bench.simulation import simulate

gaps = st.lists(st.floats(0, 3), min_size=1, max_size=120)


def send_all(governor: Governor, arrivals: list[float], tokens: list[float]) -> list[float]:
    """Requests come one after the other and wait for their turn; returns when each left."""
    left, now = [], 0.0
    for gap, cost in zip(arrivals, tokens, strict=True):
        now += gap
        while (wait := governor.admit(now, cost)) > 0:
            now += wait
        left.append(now)
    return left


@given(gaps, st.floats(1, 6000))
def test_in_no_window_more_requests_leave_than_the_quota_and_the_credit(arrivals, per_minute):
    governor = Governor(requests_per_minute=per_minute)
    left = send_all(governor, arrivals, [1.0] * len(arrivals))
    rate = per_minute / 60
    for first, start in enumerate(left):
        for last in range(first, len(left)):
            window = left[last] - start
            allowed = 1 + rate * (window + Governor.REQUEST_CREDIT_SECONDS)
            assert last - first + 1 <= allowed + 1e-6


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 500)), min_size=1, max_size=80), st.floats(600, 60_000))
def test_in_no_window_more_tokens_leave_than_the_quota_and_the_credit_and_one_prompt(arrivals, per_minute):
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
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(["send", "429", "429 for 3 s", "answer"])), max_size=80),
    st.none() | st.floats(1, 6000),
    st.none() | st.floats(600, 1e6),
    st.integers(1, 16),
)
def test_no_request_waits_for_ever_whatever_happened_before(events, requests, tokens, workers):
    governor = Governor(requests_per_minute=requests, tokens_per_minute=tokens, expected_workers=workers)
    now = 0.0
    for gap, event in events:
        now += gap
        match event:
            case "send":
                governor.admit(now, 10)
            case "429":
                governor.rejected(now, None)
            case "429 for 3 s":
                governor.rejected(now, 3.0)
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


def test_a_prompt_larger_than_the_credit_leaves_when_all_of_the_credit_is_there():
    governor = Governor(tokens_per_minute=60_000)  # 1,000 a second
    assert governor.admit(0.0, 900) == 0
    assert governor.admit(0.0, 5000) == pytest.approx(0.9)
    assert governor.admit(0.9, 5000) == 0
    assert governor.admit(0.9, 1) == pytest.approx(4.001)


def test_everybody_waits_for_as_long_as_the_server_says():
    governor = Governor(requests_per_minute=600)
    governor.admit(0.0, 1)
    assert governor.rejected(1.0, 7.5) == 7.5
    assert governor.admit(2.0, 1) == 6.5
    assert governor.admit(8.5, 1) == 0


def test_a_shorter_hold_does_not_end_a_longer_one():
    governor = Governor(requests_per_minute=600)
    governor.rejected(0.0, 10.0)
    governor.rejected(1.0, 1.0)
    assert governor.admit(2.0, 1) == 8.0


def test_machines_that_were_rejected_together_come_back_one_gap_apart_at_most():
    governor = Governor(requests_per_minute=600)
    assert governor.rejected(0.0, 2.0, chance=1.0) == pytest.approx(2.1, abs=0.02)


def test_an_advice_of_no_time_is_not_taken():
    assert Governor(requests_per_minute=600).rejected(0.0, 0.0) == Governor.FIRST_HOLD_SECONDS


def test_an_advice_of_days_is_not_taken_either():
    assert Governor(requests_per_minute=600).rejected(0.0, 86_400.0) == Governor.LONGEST_HOLD_SECONDS


def test_a_429_without_advice_doubles_the_hold_until_an_answer_comes():
    governor = Governor(requests_per_minute=600)
    holds, now = [], 0.0
    for _ in range(4):
        holds.append(governor.rejected(now, None))
        assert governor.rejected(now + 0.01, None) >= holds[-1], "under way when the hold began: no further sign"
        now = governor.state.held_until + 0.1
    assert holds == pytest.approx([0.3, 0.6, 1.2, 2.4])
    governor.settle(0, 0, is_answered=True)
    assert governor.rejected(now, None) == pytest.approx(0.3)


def test_one_overload_cuts_the_share_once_however_many_429s_it_brings():
    governor = Governor(requests_per_minute=600)
    governor.admit(0.0, 1)
    for number in range(20):
        governor.rejected(10 + number * 0.05, 0.5)
    assert governor.state.share == pytest.approx(Governor.CUT, abs=0.01)


def test_overloads_that_follow_each_other_closely_cut_deeper():
    governor = Governor(requests_per_minute=600)
    governor.admit(0.0, 1)
    shares = []
    for number in range(5):
        governor.rejected(10.0 + 3 * number, 0.5)
        shares.append(governor.state.share)
    ratios = [after / before for before, after in itertools.pairwise(shares)]
    assert ratios == pytest.approx([0.92**2, 0.92**4, 0.92**8, 0.92**8], abs=0.03)


def test_the_share_of_machines_that_left_is_taken_over():
    governor = Governor(requests_per_minute=600, expected_workers=4)
    governor.admit(0.0, 1)
    governor.rejected(1.0, 0.5)
    for second in range(2, 600):
        governor.admit(float(second), 1)
    assert governor.state.share == 1.0


def test_the_stated_quota_is_never_exceeded_however_quiet_it_is():
    governor = Governor(requests_per_minute=600)
    for second in range(3600):
        governor.admit(float(second), 1)
    assert governor.state.share == 1.0


def test_without_a_quota_the_rate_is_learned_from_the_first_429():
    governor = Governor()
    now = 0.0
    for _ in range(100):
        while (wait := governor.admit(now, 1)) > 0:
            now += wait
    assert now == pytest.approx(0.35, abs=0.1), "until then, nothing slows it but the start"
    governor.rejected(now, 20.0 - now)
    assert governor.state.learned_rps == pytest.approx(99 / 20, rel=0.02)


def test_without_a_quota_and_without_a_429_the_rate_doubles():
    left = send_all(Governor(), [0.0] * 20_000, [1.0] * 20_000)
    assert 1000 < sum(2 <= time < 4 for time in left) < 2000, "from 500 to 1,000 a second"
    assert left[-1] < 12


def test_a_429_before_there_was_anything_to_learn_from_does_not_crawl_for_long():
    governor = Governor()
    governor.admit(0.0, 1)
    governor.rejected(0.0, 2.0)
    now, sent = 2.0, 0
    while now < 30:
        wait = governor.admit(now, 1)
        now += wait
        sent += wait <= 0
    assert sent > 100


def test_with_tokens_limited_alone_requests_are_not():
    governor = Governor(tokens_per_minute=6e9)
    left = send_all(governor, [0.0] * 500, [1.0] * 500)
    assert left[-1] <= 0.5
    governor.rejected(1.0, 0.5)
    assert governor.state.learned_rps == 0


def test_a_state_fits_a_record_of_doubles():
    state = Governor(requests_per_minute=600).state
    fields = dataclasses.fields(GovernorState)
    record = struct.pack(f"{len(fields)}d", *dataclasses.astuple(state))
    assert GovernorState(*struct.unpack(f"{len(fields)}d", record)) == state


@pytest.mark.parametrize(
    ("machines", "expected_workers", "most_rejected"),
    # The design's own table: 0.14, 0.53 and 0.77 % with the right guess, 2.42 % four times too small.
    [(1, 1, 0.002), (4, 4, 0.01), (16, 16, 0.01), (4, 16, 0.005), (16, 4, 0.03)],
)
def test_an_hour_of_machines_that_cannot_talk_uses_the_quota_with_few_429s(
    machines, expected_workers, most_rejected
):
    found = simulate(
        lambda: Governor(requests_per_minute=600, expected_workers=expected_workers),
        machines=machines,
        requests_per_minute=600,
    )
    assert found.utilisation_ratio > 0.99
    assert found.rejected_ratio < most_rejected
    assert found.jain > 0.8


@pytest.mark.parametrize("machines", [1, 2, 4])
def test_an_hour_without_a_known_quota_uses_nearly_all_of_it(machines):
    found = simulate(Governor, machines=machines, requests_per_minute=600)
    assert found.utilisation_ratio > 0.95
    assert found.rejected_ratio < 0.01
