"""pace: the law of a shared pool, which others use as well, and which rejects requests by chance.

A quota admits nothing more after a 429 until it has refilled. A pool admits the next request almost as likely as
any other. So a 429 is tested, where it matters little: two requests are sent at once, and only a pool admits both.
A window of one second may pass, if its 429s take so long that the next window has begun; so any further 429 during
the test fails it, as the 429s at the end of a window follow each other. A slow one still passes. Pools slower than
`LEAST_RPS` are paced like quotas: with 8 requests per second, 68 instead of 72 % of the pools were in time, and
1 % more of the windows had few 429s.

In a pool the share of 429s controls the rate, and nothing is held: the rate grows, and each 429 cuts it, so
that a share of `REJECTED_RATIO` keeps it. It does not fall far below what was admitted lately.

docs/evidence/pacing.md has what was measured, and which variants were refused.
"""

from __future__ import annotations

import math

from airflow_provider_llmbeam.engine.pacing.unknown_quota import hold, quota_unit
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState

#: Share of 429s that keeps the rate. A pool may reject 0.3 % at any load.
REJECTED_RATIO = 0.02
#: Growth of the logarithm of the rate per second, and the largest factor of it after few 429s.
GROWTH_PER_SECOND, FASTEST_GROWTH = 0.06, 3.0
#: Largest cut of the logarithm of the rate.
LARGEST_CUT = 0.2
#: Weight of a request in the smoothed share of 429s.
SMOOTHING = 0.01
#: Share of what was admitted lately below which no 429 cuts the rate, and the seconds and requests of "lately".
FLOOR, HORIZON_SECONDS, HORIZON_SENDS = 0.8, 1.0, 20.0
#: Evidence above which the server is a pool: after one test at first, until three or more have failed.
POOL = 0.6
#: What a passed test adds of the missing evidence, what a failed one leaves of it, and the least that is tested: a
#: pool with a load of 1.1 of its capacity fails every fifth test.
PASSED, FAILED, LEAST_TESTED = 0.5, 0.8, 0.2
#: What a 429 that is not tested adds to the evidence.
RECOVERY = 0.01
#: After fewer requests, the rate may be much too high; at a lower rate, a pool changes faster than 429s can show.
LEAST_SENDS, LEAST_RPS = 20.0, 4.0
#: An interval that differs by so few requests from the measured rate is that of a quota: one at each of its ends.
STEADY_SENDS, STEADY_MEASURED = 1.2, 10.0
#: Share of the time in which requests may wait for the results of tests.
WAITING_RATIO = 0.02
#: Number of requests that measured the rate, for a pool that turns out to be a quota.
LEFT_MEASURED = 30.0


def is_pool(state: LearnedRateState) -> bool:
    """Whether the server is taken for a pool."""
    return state.chance > POOL and state.since >= 0 and state.base_rps >= LEAST_RPS


def is_tested(state: LearnedRateState, now: float, sent_at: float) -> bool:
    """Decides whether a 429, of a request sent at that time, is tested, for all that is known of the server."""
    if state.base_rps < LEAST_RPS or state.sent < LEAST_SENDS or not _may_wait(state, now):
        return False
    if state.tokens_evidence > quota_unit.CERTAIN:
        return False
    if state.measured >= STEADY_MEASURED:
        expected = state.measured / state.measured_seconds * (sent_at - state.since)
        if abs(state.sent - expected) <= STEADY_SENDS:
            return False
    state.chance = min(POOL, state.chance + RECOVERY)
    return state.chance > LEAST_TESTED


def begin_test(state: LearnedRateState, now: float) -> None:
    """Begins a test: the next two requests are sent now."""
    state.is_pool_tested, state.resumed = 1.0, 0.0
    state.resumed_at = state.held_until = state.request_line = now


def test_rps(state: LearnedRateState) -> float:
    """Returns the rate during a test: two requests at once, and the next one when a 429 would have arrived."""
    return 1e9 if state.resumed < 1 else min(state.base_rps, 0.5 / state.rejection_seconds)


def passed_test(state: LearnedRateState) -> None:
    """Records that both requests of a test were admitted."""
    state.is_pool_tested = 0.0
    state.chance += PASSED * (1 - state.chance)


def failed_test(state: LearnedRateState) -> None:
    """Records a 429 during a test."""
    was_pool = is_pool(state)
    state.is_pool_tested = 0.0
    state.chance *= FAILED
    if was_pool and not is_pool(state):
        _leave(state)


def sent(state: LearnedRateState, seconds: float, *, is_waited_for: bool) -> None:
    """Records a request that is sent to a pool.

    Args:
        state: The state.
        seconds: Time since the last request or 429, in seconds.
        is_waited_for: Whether the request had to wait for the rate, without which the rate does not grow.
    """
    horizon = _horizon_seconds(state)
    state.admitted_rps = (state.admitted_rps or state.base_rps) * math.exp(-seconds / horizon) + 1 / horizon
    state.rejected_ratio *= 1 - SMOOTHING
    if is_waited_for:
        state.base_rps *= grow(state.base_rps, state.rejected_ratio, seconds)


def rejected(state: LearnedRateState, now: float, retry_after_seconds: float | None, sent_at: float) -> float:
    """Records a 429 of a pool. Only a retry delay that may be true holds requests.

    Args:
        state: The state.
        now: Time of the clock, in seconds.
        retry_after_seconds: Retry delay of the server, or `None`.
        sent_at: Time at which the request was sent.

    Returns:
        Time until requests are sent again, in seconds.
    """
    state.admitted_rps = max(0.0, state.admitted_rps - 1 / _horizon_seconds(state))
    state.rejected_ratio += SMOOTHING
    least = min(state.base_rps, FLOOR * state.admitted_rps)
    state.base_rps = max(least, state.base_rps * math.exp(-cut(state.base_rps)))
    quota_unit.begin_interval(state, sent_at)
    state.holds = state.held_seconds = state.growth_seconds = state.is_next_run = 0.0
    if not is_pool(state):
        _leave(state)
    if retry_after_seconds is not None and hold.is_obeyed(state, retry_after_seconds):
        until = now + min(hold.LONGEST_SECONDS, retry_after_seconds)
        state.held_until = state.resumed_at = max(state.held_until, until)
    elif not state.is_pool_tested and _may_wait(state, now):
        begin_test(state, now)
    return max(0.0, state.held_until - now)


def grow(rps: float, rejected_ratio: float, seconds: float) -> float:
    """Returns the factor of a rate after some time without a 429.

    Args:
        rps: The rate, in requests per second.
        rejected_ratio: Smoothed share of requests that were rejected.
        seconds: The time.
    """
    factor = min(FASTEST_GROWTH, max(1.0, REJECTED_RATIO / max(rejected_ratio, 1e-9)))
    return math.exp(cut(rps) * REJECTED_RATIO * rps * factor * seconds)


def cut(rps: float) -> float:
    """Returns the cut of the logarithm of a rate, in requests per second, by a 429."""
    return min(LARGEST_CUT, GROWTH_PER_SECOND / (REJECTED_RATIO * rps))


def _leave(state: LearnedRateState) -> None:
    """Makes the present rate the measured one: the server is a quota, or too slow a pool."""
    state.measured = max(1.0, min(state.measured, LEFT_MEASURED))
    state.measured_seconds = state.measured / state.base_rps


def _may_wait(state: LearnedRateState, now: float) -> bool:
    return now - state.resumed_at > 2 * state.rejection_seconds / WAITING_RATIO


def _horizon_seconds(state: LearnedRateState) -> float:
    return max(HORIZON_SECONDS, HORIZON_SENDS / state.base_rps)
