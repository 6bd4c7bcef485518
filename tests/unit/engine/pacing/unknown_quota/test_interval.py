from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.pacing.unknown_quota import interval
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState


def ended(state: LearnedRateState, seconds: float, current_rps: float = 0.0) -> LearnedRateState:
    interval.end(state, seconds, current_rps)
    return state


def later(**fields: float) -> LearnedRateState:
    """Returns a state that began so long ago that its burst says nothing."""
    return LearnedRateState(started_at=0.0, since=1000.0, **fields)


def test_the_first_interval_is_the_rate() -> None:
    state = ended(later(sent=20.0), 10.0)
    assert (state.base_rps, state.measured, state.measured_seconds) == (2.0, 20.0, 10.0)


def test_similar_intervals_are_added_up() -> None:
    state = ended(later(sent=12.0, base_rps=1.0, measured=10.0, measured_seconds=10.0), 10.0)
    assert state.base_rps == pytest.approx(22 / 20)


def test_another_rate_outweighs_the_one_before() -> None:
    state = ended(later(sent=10.0, base_rps=10.0, measured=100.0, measured_seconds=10.0), 10.0)
    assert state.base_rps == pytest.approx((40 + 10) / (4 + 10))


def test_a_single_429_after_many_requests_keeps_most_of_the_present_rate() -> None:
    state = ended(later(sent=20.0, base_rps=2.0, measured=20.0, measured_seconds=10.0), 10.0, current_rps=3.0)
    assert state.base_rps == pytest.approx(interval.ISOLATED_CUT * 3.0)


def test_a_later_run_learns_nothing_from_a_quota_that_was_not_used_up() -> None:
    state = ended(later(sent=20.0, base_rps=2.0, measured=20.0, measured_seconds=10.0, is_next_run=1.0), 10.0)
    assert (state.base_rps, state.measured) == (2.0, 20.0)


def test_a_later_run_learns_a_lower_rate() -> None:
    state = ended(later(sent=5.0, base_rps=2.0, measured=20.0, measured_seconds=10.0, is_next_run=1.0), 10.0)
    assert 0.5 < state.base_rps < 1.0


def test_what_a_burst_needs_to_refill_within_a_minute_is_the_least_rate_in_the_first_two_minutes() -> None:
    state = ended(LearnedRateState(started_at=0.0, since=20.0, sent=5.0, total=180.0), 10.0)
    assert state.base_rps == pytest.approx(180 / (30 + 60))
    state = ended(LearnedRateState(started_at=0.0, since=140.0, sent=5.0, total=180.0), 10.0)
    assert state.base_rps == pytest.approx(0.5)
