"""pace: the time after a 429 in which nothing is sent to a server whose quota is not known."""

from __future__ import annotations

from airflow_provider_llmbeam.engine.pacing.learned_rate_state import LearnedRateState

#: Holds after 429s without a retry delay, until a request is admitted for the first time. Their sums are
#: 0.3, 1.1, 4, 12, 30 and 61 s: common windows are 1, 10, 20 and 60 s long.
FIRST_SECONDS = (0.3, 0.8, 2.9, 8.0, 18.0, 31.0, 61.0)
SHORTEST_SECONDS = 0.02
#: Maximum hold, whatever the server asks for; daily quotas are recognised by the backends.
LONGEST_SECONDS = 600.0
#: A retry delay of more than so many requests is tested after so many, unless it is trusted.
LONG_DELAY_SENDS, TEST_SENDS, TRUSTED = 4.0, 2.0, 0.9


def begin(state: LearnedRateState, now: float, retry_after_seconds: float | None, chance: float) -> float:
    """Begins a hold.

    Args:
        state: The state.
        now: Time of the clock, in seconds.
        retry_after_seconds: Retry delay of the server, or `None`.
        chance: Random number, uniform in [0, 1), which spreads machines that were rejected together.

    Returns:
        Duration of the hold, in seconds.
    """
    if state.is_tested and state.holds:
        state.trust, state.is_tested = 0.5 + 0.5 * state.trust, 0.0
        state.holds = 0.0
    elif _is_doubtful(state, retry_after_seconds):
        state.is_tested = 1.0
        retry_after_seconds = TEST_SENDS / state.base_rps
    seconds = _seconds(state, retry_after_seconds)
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


def is_obeyed(state: LearnedRateState, retry_after_seconds: float | None) -> bool:
    """Whether there is a retry delay that is trusted, or not much longer than the rate suggests."""
    if retry_after_seconds is None:
        return False
    return state.trust >= TRUSTED or retry_after_seconds * state.base_rps <= LONG_DELAY_SENDS


def _is_doubtful(state: LearnedRateState, retry_after_seconds: float | None) -> bool:
    """Whether a retry delay is much longer than the measured rate suggests, and is not known to be right."""
    if retry_after_seconds is None or state.holds or state.measured < 8:
        return False
    return not is_obeyed(state, retry_after_seconds)


def _seconds(state: LearnedRateState, retry_after_seconds: float | None) -> float:
    """Returns the duration of a hold; without a retry delay it doubles if it was too short."""
    if retry_after_seconds is not None:
        seconds = max(SHORTEST_SECONDS, retry_after_seconds)
    elif state.base_rps:
        least = state.rejection_seconds if state.holds else SHORTEST_SECONDS
        seconds = max(least, 1 / state.base_rps) * 2.0 ** min(10.0, state.holds)
    else:
        seconds = FIRST_SECONDS[min(len(FIRST_SECONDS) - 1, int(state.holds))]
    return float(min(LONGEST_SECONDS, seconds))
