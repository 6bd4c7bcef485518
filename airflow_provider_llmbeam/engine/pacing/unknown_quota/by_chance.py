"""pace: a server that rejects a share of all requests by chance, at any rate.

The 429s of a quota, and those of a pool, become rare when the rate falls; those by chance keep their share. So two
things are evidence of chance:

- A 429 soon follows the one before, although the rate was cut.
- A trial passes: what was sent after the rejected request is admitted, while a quota that is used up rejects it.
  Before anything is held, requests in flight are awaited, which costs none. If they are too few, some are sent at
  once. Quotas reject these, so this is done only where they decide, or in a large batch. Between two trials,
  requests are sent at another rate.

When the evidence is enough, what was learned is forgotten, and the run begins again: a 429 holds only its own
request, which waits as it was told. If more are rejected than the share explains, which a CUSUM test decides, the
law of quotas is told of one 429; so it finds a quota below, and a pool that was taken for chance.

docs/evidence/pacing.md has what was measured, and which variants were refused.
"""

from __future__ import annotations

import dataclasses
import math

from airflow_provider_llmbeam.engine.pacing.unknown_quota import hold, shared_pool
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState

#: Shortest retry delay that is doubted, as a shorter hold costs little.
DOUBTED_SECONDS = 0.5
#: Evidence that is enough, where a 429 soon after another counts 1, and that of a trial. As much below zero is the
#: least, and what is left after a wrong decision.
ENOUGH, OF_TRIAL = 7.0, 2.0
#: A 429 soon follows another after at most so many admitted requests.
CLOSE_SENDS = 30.0
#: Least number of requests of a trial, and the share of them beyond which it fails.
TRIAL_SENDS, MOST_REJECTED = 4.0, 0.4
#: Ratio of the rates before and after a trial, and the rate above which the second is the lower one. A batch that
#: begins so fast is large, so that a few 429s more are little.
OTHER_RATE, FAST_RPS = 3.0, 100.0
#: Share at first, and the number of requests that measure it.
FIRST_SHARE, SHARE_SENDS = 0.1, 200.0
#: Number of 429s beyond the share that show another cause, and the multiple of the share that is excused.
EXCESS, EXCUSED_RATIO = 12.0, 1.5


def rps(state: LearnedRateState, rps: float) -> float:
    """Returns the rate at which requests are sent, where a quota is to admit so many per second."""
    if state.trial_unsent:
        return math.inf
    if state.is_by_chance:
        return rps if _is_share_measured(state) else rps / (1 - state.share)
    if state.apart_sends > CLOSE_SENDS:
        return rps
    return float(rps * OTHER_RATE ** (-state.trials if rps > FAST_RPS else state.trials))


def record_send(state: LearnedRateState, now: float) -> None:
    """Records a request that is sent."""
    if not state.apart_sends:
        state.apart_at = now
    state.apart_sends += 1
    if state.trial_unsent:
        state.trial_unsent -= 1
        state.trial_until = max(state.trial_until, now + hold.PROBE_RATIO * state.rejection_seconds)
    if state.is_by_chance:
        if _is_share_measured(state):
            state.share -= state.share / SHARE_SENDS
        if state.share < 1 / SHARE_SENDS:
            state.share = 0.0
        state.excess = max(0.0, state.excess - EXCUSED_RATIO * state.share)


def explains(state: LearnedRateState, now: float, sent_at: float, retry_after_seconds: float | None) -> bool:
    """Records a 429 of a request that was sent after the last hold.

    Args:
        state: The state.
        now: Time of the clock, in seconds.
        sent_at: Time at which the request was sent.
        retry_after_seconds: Retry delay of the server, or `None`.

    Returns:
        Whether it is by chance, or may be for all that is known until the end of a trial, and holds nothing.
    """
    if state.is_by_chance:
        return _is_of_share(state)
    if state.trial_until >= 0:
        state.trial_rejected += 1
        if state.trial_rejected > MOST_REJECTED * state.trial_sends:
            _end_trial(state, -OF_TRIAL)
        return state.trial_until >= 0
    if state.trials and (not state.apart_sends or sent_at < state.apart_at):
        return True  # of a trial that has passed
    sends, state.apart_sends = state.apart_sends, 0.0
    rps = max(0.0, sends - 1) / max(1e-3, now - state.apart_at)
    is_large = state.since < 0 and not state.is_next_run and (rps > FAST_RPS or state.trials > 0)
    is_doubted = retry_after_seconds is not None and retry_after_seconds >= DOUBTED_SECONDS
    if not is_doubted or (sends < TRIAL_SENDS and not is_large) or shared_pool.is_pool(state):
        return False
    in_flight = rps * (now - sent_at)
    if sends - in_flight > CLOSE_SENDS and not is_large:
        _end_trial(state, -OF_TRIAL)
        return False
    state.evidence += 1
    is_decisive = state.evidence + OF_TRIAL >= ENOUGH or state.trials > 0
    if in_flight < TRIAL_SENDS and not is_decisive and not is_large:
        return False
    state.trial_sends, state.trial_rejected = max(TRIAL_SENDS, in_flight), 0.0
    state.trial_unsent = float(math.ceil(state.trial_sends - in_flight))
    state.trial_until = now + hold.PROBE_RATIO * (now - sent_at)
    state.request_line = min(state.request_line, now)
    return True


def decide(state: LearnedRateState, now: float) -> LearnedRateState:
    """Returns the state for all evidence so far: a new one if that is enough, with the share of 429s by chance."""
    if 0 <= state.trial_until <= now and not state.trial_unsent:
        _end_trial(state, OF_TRIAL)
        state.apart_sends = 0.0
    if state.is_by_chance or state.evidence < ENOUGH:
        return state
    return dataclasses.replace(
        LearnedRateState(),
        started_at=now,
        grown_at=now,
        request_line=now,
        rejection_seconds=state.rejection_seconds,
        unit_tokens=state.unit_tokens,
        tokens_evidence=state.tokens_evidence,
        mean_tokens=state.mean_tokens,
        mean_sends=state.mean_sends,
        share=FIRST_SHARE,
    )


def _end_trial(state: LearnedRateState, evidence: float) -> None:
    state.trial_until, state.trial_unsent = -1.0, 0.0
    state.trials = state.trials + 1 if evidence > 0 else 0.0
    state.evidence = max(-ENOUGH, state.evidence + evidence)


def _is_of_share(state: LearnedRateState) -> bool:
    """Records a 429 where requests are rejected by chance; returns whether the share explains it."""
    if _is_share_measured(state):
        state.share += (1 - state.share) / SHARE_SENDS
    state.excess += 1
    if state.excess < EXCESS:
        return True
    state.excess = 0.0
    if state.since < 0 and state.total < 0.5 * SHARE_SENDS:
        state.share, state.evidence = 0.0, -ENOUGH
    return False


def _is_share_measured(state: LearnedRateState) -> bool:
    """Whether a quota, if there is one, admits all that is sent, so that the other 429s show the share."""
    return state.since < 0 or state.sent < SHARE_SENDS
