"""pace: the rate that an interval between two 429s measures, of a server whose quota is not known."""

from __future__ import annotations

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState

#: After so many requests, a 429 is by chance, or the rate is a little too high: it is cut by so much only, and if
#: the rate has doubled, to this power of its ratio to the measured one.
ISOLATED_SENDS, ISOLATED_CUT, ISOLATED_POWER = 15.0, 0.95, 0.75
#: An interval that differs by a larger factor from the measured rate leaves so much of its weight: one of few
#: requests, and another. Without the first, a quota that fell to a tenth cost 430 429s instead of 48.
CONSISTENT, INCONSISTENT_WEIGHTS = 1.4, (0.7, 0.4)
#: Number of requests whose measurement is remembered.
MEASURED_SENDS = 200.0
#: Longest time in which a quota refills its burst: it admits at least the requests so far over the time so far and
#: this one. Without it, the slow begin of a log was taken for its rate (81 % of logs in time, not 89 %). For twice
#: this time; an interval that contradicts it leaves so much of the requests so far.
LONGEST_BURST_SECONDS, CONTRADICTED = 60.0, 0.8

#: Time in which a quota admits something. If it admits nothing for longer, that is an outage, e.g. as others use
#: all of it, and no part of an interval: jobs of three minutes that began ten minutes before the end of an outage
#: took 10 times as long after it as the rate allows (median of 48 simulated ones), and now take 1.1 times.
LONGEST_WINDOW_SECONDS = 120.0


def end(state: LearnedRateState, seconds: float, current_rps: float) -> None:
    """Ends an interval, and sets the rate.

    Args:
        state: The state.
        seconds: Duration of the interval.
        current_rps: Rate at its end, in units per second.
    """
    sent, held_ratio = state.sent, state.held_seconds / seconds
    if state.is_next_run:
        # The quota was not used up at the begin of the interval, so that only a lower rate is a measurement.
        if sent / seconds < state.base_rps / CONSISTENT:
            _add(state, max(sent, 0.5), seconds)
    elif state.base_rps and held_ratio > 0.5 and sent < 8 and state.poor_intervals < 2:
        # A window that had just begun, or a bucket that was full: neither was in equilibrium.
        state.poor_intervals += 1
        state.base_rps = max(0.9**state.poor_intervals * state.base_rps, sent / seconds)
    elif held_ratio > 0.25 and sent >= 8 and not state.is_optimistic:
        # The last hold may have been much too long; if not, the next ones fail and cut the rate to `measured`.
        state.is_optimistic = 1.0
        state.base_rps = sent / max(1e-3, seconds - state.held_seconds)
        state.measured = min(sent, 30.0)
        state.measured_seconds = seconds * state.measured / sent
        _keep(state, current_rps)
    else:
        state.poor_intervals = 0.0
        state.is_optimistic = state.is_optimistic if held_ratio > 0.25 else 0.0
        _add(state, max(sent, 0.5), seconds)
        _keep(state, current_rps)
    _keep_burst(state, state.since + seconds - state.started_at)


def end_outage(state: LearnedRateState) -> None:
    """Begins an interval with the first request after an outage, or the first burst if none was admitted before.

    It is called before the second one is sent, when no 429 of the first can arrive any more.
    """
    passed = state.resumed_at - state.since
    if state.since < 0 or state.resumed != 1 or state.holds < 2 or passed < LONGEST_WINDOW_SECONDS:
        return
    state.started_at += passed
    is_start = not state.base_rps and state.total - state.sent < 1
    state.since = -1.0 if is_start else state.resumed_at
    state.held_seconds = 0.0


def _add(state: LearnedRateState, sent: float, seconds: float) -> None:
    """Adds an interval to those that measured the rate."""
    if state.measured:
        ratio = sent / seconds / (state.measured / state.measured_seconds)
        weight = 1.0 if 1 / CONSISTENT < ratio < CONSISTENT else INCONSISTENT_WEIGHTS[sent >= 4]
        weight = min(weight, MEASURED_SENDS / state.measured)
        state.measured, state.measured_seconds = weight * state.measured, weight * state.measured_seconds
    state.measured += sent
    state.measured_seconds += seconds
    state.base_rps = state.measured / state.measured_seconds


def _keep(state: LearnedRateState, current_rps: float) -> None:
    """Keeps most of the present rate after an isolated 429; if it was too high, the next follows soon."""
    if state.sent >= ISOLATED_SENDS and state.base_rps < current_rps:
        power = ISOLATED_POWER if state.growth_seconds else 1.0
        kept_rps = state.base_rps * (current_rps / state.base_rps) ** power
        state.base_rps = max(state.base_rps, ISOLATED_CUT * kept_rps)


def _keep_burst(state: LearnedRateState, passed: float) -> None:
    """Keeps the rate that refills the burst so far in a minute, after so many seconds."""
    least_rps = state.total / (passed + LONGEST_BURST_SECONDS)
    if passed < 2 * LONGEST_BURST_SECONDS and least_rps > state.base_rps:
        state.base_rps = least_rps
        state.total *= CONTRADICTED
