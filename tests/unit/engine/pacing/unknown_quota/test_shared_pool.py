from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.unknown_quota import shared_pool
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState


def learned(**changes: float) -> LearnedRateState:
    """Returns the state a moment before the first 429 after a long time at 20 requests per second."""
    fields = {
        "started_at": 0.0,
        "grown_at": 100.0,
        "request_line": 100.0,
        "since": 90.0,
        "sent": 220.0,
        "base_rps": 20.0,
        "measured": 50.0,
        "measured_seconds": 2.5,
        "resumed": 220.0,
        "total": 2000.0,
        "rejection_seconds": 0.01,
        "chance": 0.25,
    }
    return LearnedRateState(**fields | changes)


def send(rate: LearnedRate, now: float) -> float:
    """Waits for the admission of a request; returns its time."""
    while (wait := rate.admit(now, 1)) > 0:
        now += wait
    return now


def test_a_429_is_tested_with_two_requests_at_once_and_the_third_waits_for_the_result():
    rate = LearnedRate(learned())
    assert rate.rejected(100.0, Rejection(sent_at=99.99)) == 0.0
    times = [send(rate, 100.0), send(rate, 100.0), send(rate, 100.0)]
    assert times[:2] == pytest.approx([100.0, 100.0], abs=1e-6)
    assert times[2] >= 100.02


def test_two_admitted_requests_show_a_pool_and_its_rate_grows_faster():
    rate = LearnedRate(learned())
    rate.rejected(100.0, Rejection(sent_at=99.99))
    now = 100.0
    for _ in range(3):
        now = send(rate, now)
    assert shared_pool.is_pool(rate.state)
    before = rate.state.base_rps
    for _ in range(200):
        now = send(rate, now)
    assert rate.state.base_rps > 1.5 * before


def test_a_rejected_request_shows_a_quota_and_holds_all():
    rate = LearnedRate(learned())
    rate.rejected(100.0, Rejection(sent_at=99.99))
    now = send(rate, send(rate, 100.0))
    assert rate.rejected(now + 0.01, Rejection(sent_at=now)) > 0
    assert rate.admit(now + 0.011, 1) > 0
    assert not shared_pool.is_pool(rate.state)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"sent": 10.0}, id="soon after another"),
        pytest.param({"sent": 200.0}, id="at the measured rate"),
        pytest.param({"base_rps": 2.0}, id="at a low rate"),
        pytest.param({"resumed_at": 99.8}, id="just after a test"),
        pytest.param({"chance": 0.1}, id="after tests that failed"),
        pytest.param({"tokens_evidence": 2.0}, id="of a quota of tokens, where short requests prove nothing"),
    ],
)
def test_a_429_that_shows_little_is_not_tested(changes):
    rate = LearnedRate(learned(**changes))
    assert rate.rejected(100.0, Rejection(sent_at=100.0)) > 0
    assert not rate.state.is_pool_tested


def test_a_429_early_in_a_run_is_tested():
    assert shared_pool.is_tested(learned(measured=5.0, measured_seconds=0.25, sent=200.0), 100.0, 100.0)


def test_a_retry_delay_that_suits_the_rate_is_obeyed_without_a_test():
    rate = LearnedRate(learned())
    rate.rejected(100.0, Rejection(0.15, sent_at=99.99))
    assert send(rate, 100.0) >= 100.15


def pool(**changes: float) -> LearnedRateState:
    """Returns a state like `learned`, of a pool."""
    return learned(**{"chance": 0.95, "admitted_rps": 20.0} | changes)


def test_a_429_of_a_pool_holds_nothing_and_cuts_the_rate_a_little():
    rate = LearnedRate(pool())
    assert rate.rejected(100.0, Rejection(30.0, sent_at=99.99)) == 0.0
    assert 16 < rate.state.base_rps < 20


def test_a_pool_obeys_a_retry_delay_that_suits_its_rate():
    rate = LearnedRate(pool())
    assert rate.rejected(100.0, Rejection(0.15, sent_at=99.99)) == pytest.approx(0.15)
    assert send(rate, 100.0) >= 100.15


def test_a_series_of_429s_cuts_the_rate_to_no_less_than_four_fifths_of_what_was_admitted():
    state = pool(base_rps=30.0, admitted_rps=25.0)
    for number in range(12):
        shared_pool.rejected(state, 100.0 + 0.01 * number, None, 100.0)
    assert 30.0 > state.base_rps >= shared_pool.FLOOR * (25.0 - 12)


@pytest.mark.parametrize(("sends_per_429", "grows"), [(100, True), (33, False)])
def test_the_rate_grows_below_the_intended_share_of_429s_and_falls_above_it(sends_per_429, grows):
    rate, now = LearnedRate(pool(rejected_ratio=shared_pool.REJECTED_RATIO)), 100.0
    for number in range(600):
        now = send(rate, now)
        if number % sends_per_429 == sends_per_429 - 1:
            rate.rejected(now, Rejection(sent_at=now))
    assert (rate.state.base_rps > 20.0) is grows


def test_the_rate_does_not_grow_while_requests_do_not_wait_for_it():
    rate = LearnedRate(pool())
    for number in range(100):
        assert rate.admit(101.0 + number, 1) == 0
    assert rate.state.base_rps == 20.0


def test_a_pool_that_admits_nothing_any_more_becomes_a_quota_within_some_seconds():
    rate, now, rejected = LearnedRate(pool()), 100.0, 0
    while now < 160:
        now = send(rate, now)
        rate.rejected(now + 0.01, Rejection(sent_at=now))
        rejected += 1
    assert not shared_pool.is_pool(rate.state)
    assert rejected < 40


def test_a_test_that_fails_in_a_pool_is_little_evidence_and_three_are_enough():
    state = pool()
    state.chance = 1.0
    shared_pool.failed_test(state)
    shared_pool.failed_test(state)
    assert shared_pool.is_pool(state)
    shared_pool.failed_test(state)
    assert not shared_pool.is_pool(state)
    assert state.measured / state.measured_seconds == pytest.approx(20.0)


def test_a_pool_that_has_become_slow_is_paced_like_a_quota():
    state = pool(base_rps=1.02 * shared_pool.LEAST_RPS, admitted_rps=1.0)
    shared_pool.rejected(state, 100.0, None, 100.0)
    assert not shared_pool.is_pool(state)
    assert state.measured / state.measured_seconds == pytest.approx(state.base_rps)


def test_the_next_run_begins_as_a_pool():
    rate = LearnedRate(pool().for_next_run())
    now = send(rate, 0.0)
    now = send(rate, now)
    assert shared_pool.is_pool(rate.state)
    assert rate.rejected(now, Rejection(sent_at=now)) == 0.0
