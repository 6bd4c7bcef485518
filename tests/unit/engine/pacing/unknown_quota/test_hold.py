from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.pacing.unknown_quota import hold
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState


@pytest.mark.parametrize(("trust", "delay", "is_obeyed"), [(0.5, 0.4, True), (0.5, 0.5, False), (0.9, 60.0, True)])
def test_a_retry_delay_is_obeyed_if_it_suits_the_rate_or_such_delays_were_true(trust, delay, is_obeyed):
    state = LearnedRateState(base_rps=10.0, measured=50.0, measured_seconds=5.0, trust=trust)
    assert hold.is_obeyed(state, delay) is is_obeyed
    assert hold.begin(state, 0.0, delay, 0.0) == (delay if is_obeyed else pytest.approx(hold.TEST_SENDS / 10.0))


def test_a_delay_that_was_true_is_trusted():
    state = LearnedRateState(base_rps=10.0, measured=50.0, measured_seconds=5.0)
    hold.begin(state, 0.0, 5.0, 0.0)
    assert hold.begin(state, 0.2, 4.8, 0.0) == 4.8
    assert state.trust == 0.75


def test_a_hold_without_a_retry_delay_doubles_from_the_time_of_one_request():
    state = LearnedRateState(base_rps=10.0)
    assert [hold.begin(state, float(number), None, 0.0) for number in range(3)] == pytest.approx([0.1, 0.2, 0.4])


@pytest.mark.parametrize(("rps", "seconds"), [(10.0, 120.0), (0.005, 200.0)])
def test_a_hold_without_a_retry_delay_is_at_most_two_minutes_or_the_time_of_one_request(rps, seconds):
    state = LearnedRateState(base_rps=rps)
    held = [hold.begin(state, 1000.0 * number, None, 0.0) for number in range(30)]
    assert max(held) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("admitted", "seconds"),
    [(1.0, [2.0, 4.0, 8.0, 8.0]), (0.0, [2.0, 2.0, 2.0, 2.0])],
    ids=["admitted", "nothing"],
)
def test_a_retry_delay_that_was_too_short_is_doubled_twice_if_a_request_was_admitted_before(admitted, seconds):
    state = LearnedRateState(total=admitted)
    assert [hold.begin(state, 100.0 * number, 2.0, 0.0) for number in range(4)] == seconds


def test_a_thousand_holds_that_were_too_short_are_no_longer_than_four_times_the_retry_delay():
    state = LearnedRateState(total=1.0, holds=2000.0)
    assert hold.begin(state, 0.0, 2.0, 0.0) == hold.MOST_DOUBLED * 2.0


def test_only_the_last_hold_may_have_been_too_long():
    state = LearnedRateState(total=1.0)
    hold.begin(state, 0.0, 2.0, 0.0)
    hold.begin(state, 2.0, 2.0, 0.0)
    assert state.held_seconds == 4.0


@pytest.mark.parametrize("changes", [{"holds": 2.0}, {"holds": 1.0, "is_tested": 1.0}])
def test_one_request_shows_whether_a_hold_was_too_short_until_its_429_could_have_arrived(changes):
    state = LearnedRateState(held_until=5.0, resumed_at=5.0, rejection_seconds=0.1, **changes)
    assert hold.ends_at(state) == 5.0
    state.resumed = 1.0
    assert hold.ends_at(state) == pytest.approx(5.12)
    state.resumed = 2.0
    assert hold.ends_at(state) == 5.0


def test_after_the_first_hold_requests_are_sent_without_a_probe():
    state = LearnedRateState(held_until=5.0, resumed_at=5.0, resumed=1.0, holds=1.0)
    assert hold.ends_at(state) == 5.0


def test_a_later_429_extends_a_hold_up_to_its_retry_delay_but_never_shortens_it():
    state = LearnedRateState()
    hold.begin(state, 0.0, 5.0, 0.0)
    assert hold.extend(state, 1.0, None) == 4.0
    assert hold.extend(state, 1.0, 3.0) == 4.0
    assert hold.extend(state, 1.0, 1e9) == hold.LONGEST_SECONDS
    assert hold.extend(state, 10_000.0, None) == 0.0
