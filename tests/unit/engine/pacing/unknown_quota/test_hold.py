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


def test_a_retry_delay_that_was_too_short_is_doubled_up_to_a_minute_and_a_longer_one_is_obeyed():
    state, now, seconds = LearnedRateState(), 0.0, []
    for _ in range(6):
        seconds.append(hold.begin(state, now, 2.0, 0.0))
        now += seconds[-1]
    assert seconds == [2.0, 4.0, 8.0, 16.0, 32.0, hold.LONGEST_DOUBLED_SECONDS]
    assert hold.begin(state, now, 90.0, 0.0) == 90.0


def test_only_the_last_hold_may_have_been_too_long():
    state = LearnedRateState()
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
