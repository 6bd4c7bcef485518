from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.pacing import hold
from airflow_provider_llmbeam.engine.pacing.learned_rate_state import LearnedRateState


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


def test_a_later_429_extends_a_hold_up_to_its_retry_delay_but_never_shortens_it():
    state = LearnedRateState()
    hold.begin(state, 0.0, 5.0, 0.0)
    assert hold.extend(state, 1.0, None) == 4.0
    assert hold.extend(state, 1.0, 3.0) == 4.0
    assert hold.extend(state, 1.0, 1e9) == hold.LONGEST_SECONDS
    assert hold.extend(state, 10_000.0, None) == 0.0
