"""pace: the time after a 429 in which nothing is sent to a server whose quota is not known."""

from __future__ import annotations

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.engine.retry import LONGEST_ADVISED_SECONDS

#: Holds after 429s without a retry delay, until a request is admitted for the first time. Their sums are
#: 0.3, 1.1, 4, 12, 30 and 61 s: common windows are 1, 10, 20 and 60 s long.
FIRST_SECONDS = (0.3, 0.8, 2.9, 8.0, 18.0, 31.0, 61.0)
SHORTEST_SECONDS = 0.02
#: Longest hold without a retry delay, unless a request takes longer at the learned rate. Without it, nothing was
#: sent for another eight minutes after ten in which a server of 30 requests per minute rejected all.
LONGEST_DOUBLED_SECONDS = 120.0
#: Maximum hold, whatever the server asks for.
LONGEST_SECONDS = LONGEST_ADVISED_SECONDS
#: Longest hold after retry delays that were too short, each twice the one before, in times of the retry delay:
#: always "2 s" cost 30 429s per minute. Of 3,000 simulated servers, 82 % had few 429s with 4, and 81 % with 1.
MOST_DOUBLED = 4.0
#: Holds that were too short, after which one request is sent and nothing else until its 429 could have arrived, in
#: times of the usual one. All that a fast rate sent in this time was rejected: up to 48 requests for each hold.
PROBED_HOLDS, PROBE_RATIO = 2.0, 1.2
#: A retry delay of more than so many requests is tested after so many, unless it is trusted.
LONG_DELAY_SENDS, TEST_SENDS, TRUSTED = 4.0, 2.0, 0.9


def ends_at(state: LearnedRateState) -> float:
    """Returns the time until which nothing is sent, also while one request shows whether a hold was too short."""
    is_probed = state.resumed == 1 and (state.holds >= PROBED_HOLDS or state.is_tested > 0)
    return state.resumed_at + PROBE_RATIO * state.rejection_seconds if is_probed else state.held_until


def begin(
    state: LearnedRateState, now: float, retry_after_seconds: float | None, chance: float, cost: float = 1.0
) -> float:
    """Begins a hold.

    Args:
        state: The state.
        now: Time of the clock, in seconds.
        retry_after_seconds: Retry delay of the server, or `None`.
        chance: Random number, uniform in [0, 1), which spreads machines that were rejected together.
        cost: What the refused request counts, as that of a mean one.

    Returns:
        Duration of the hold, in seconds.
    """
    if state.holds:
        state.held_seconds = 0.0  # The holds before were not too long, so that they are part of the interval.
    if state.is_tested and state.holds:
        state.trust, state.is_tested = 0.5 + 0.5 * state.trust, 0.0
        state.holds = 0.0
    elif _is_doubtful(state, retry_after_seconds, cost):
        state.is_tested = 1.0
        retry_after_seconds = TEST_SENDS / state.base_rps
    seconds = _seconds(state, retry_after_seconds, cost)
    seconds += chance * min(1.0, 1 / state.base_rps if state.base_rps else 0.1)
    state.holds += 1
    state.resumed = 0.0
    state.held_seconds += max(0.0, now + seconds - max(now, state.held_until))
    state.held_until = state.resumed_at = max(state.held_until, now + seconds)
    return seconds


def extend(state: LearnedRateState, now: float, retry_after_seconds: float | None) -> float:
    """Records a 429 of a request that was in flight when the hold began: no further evidence of the rate."""
    until = now + min(LONGEST_SECONDS, retry_after_seconds or 0.0)
    if now < state.held_until < until and not state.is_tested:
        state.held_seconds += until - state.held_until
        state.held_until = state.resumed_at = until
    return max(0.0, state.held_until - now)


def is_obeyed(state: LearnedRateState, retry_after_seconds: float | None, cost: float = 1.0) -> bool:
    """Whether there is a retry delay that is trusted, or not much longer than the rate suggests."""
    if retry_after_seconds is None:
        return False
    return state.trust >= TRUSTED or retry_after_seconds * state.base_rps <= LONG_DELAY_SENDS * max(1.0, cost)


def _is_doubtful(state: LearnedRateState, retry_after_seconds: float | None, cost: float) -> bool:
    """Whether a retry delay is much longer than the measured rate suggests, and is not known to be right."""
    if retry_after_seconds is None or state.holds or state.measured < 8:
        return False
    return not is_obeyed(state, retry_after_seconds, cost)


def _seconds(state: LearnedRateState, retry_after_seconds: float | None, cost: float) -> float:
    """Returns the duration of a hold, which doubles if the one before was too short.

    Before a request is admitted, a retry delay is not doubled: others have used the quota, and nothing is known.
    """
    if retry_after_seconds is not None:
        doubled = min(MOST_DOUBLED, 2.0 ** min(10.0, state.holds)) if state.total >= 1 else 1.0
        seconds = max(SHORTEST_SECONDS, retry_after_seconds) * doubled
    elif state.base_rps:
        least = state.rejection_seconds if state.holds else SHORTEST_SECONDS
        first = max(least, max(1.0, cost) / state.base_rps)
        seconds = min(first * 2.0 ** min(20.0, state.holds), max(first, LONGEST_DOUBLED_SECONDS))
    else:
        seconds = FIRST_SECONDS[min(len(FIRST_SECONDS) - 1, int(state.holds))]
    return float(min(LONGEST_SECONDS, seconds))
