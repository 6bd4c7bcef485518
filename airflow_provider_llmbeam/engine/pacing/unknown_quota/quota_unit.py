"""pace: what a quota counts that is not known, requests or tokens.

`LearnedRate` counts in units. A unit is a request, or the mean tokens of one, so that its law is the same for
both. Some servers name what an exhausted quota counts. Else three things tell:

- A quota of tokens rejects a request of c tokens about c times as likely as one of a single token, a quota of
  requests any request alike. So the logarithm of c over the mean is evidence, of the first 429 of each overload
  only: when all is used up, every request is rejected.
- Between two 429s the rate of what is counted is as before, and the other one is not, if the lengths have changed.
- Without evidence tokens are counted. The engine sends the longest prompts first: if tokens were counted and
  requests assumed, the rate of tokens would fall with the lengths, and no 429 would show it. In the other case
  one comes.

Before the first answer nobody knows how long answers are, and a request counts as a mean one. Guessed lengths
that were corrected by the answers changed what each further request counted, and so the rate: of 600 simulated
quotas of requests, 82 instead of 85 % had few 429s.

docs/evidence/pacing.md has what was measured, and which variants were refused.
"""

from __future__ import annotations

import math

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.transport.server_reply import QuotaUnit

#: Evidence is a logarithm of odds, positive for tokens. The unit changes beyond `CHANGES`, and beyond `CERTAIN` a
#: 429 is not tested to be that of a pool, as two short requests prove nothing then.
CHANGES, CERTAIN, MOST_EVIDENCE = 0.5, 1.5, 4.0
#: Least size of a rejected request, as a share of the mean: a quota that is used up rejects short ones, too.
LEAST_SIZE = 0.1
#: Number of requests whose mean size is used.
MEAN_SENDS = 100.0
#: Most evidence of two intervals; what their rates differ by in any case, as a share and in requests; and the
#: share of an interval beyond which its holds decide its rate.
MOST_OF_INTERVAL, NOISE_RATIO, NOISE_SENDS, MOST_HELD = 2.0, 0.05, 2.0, 0.25
#: Longest time that a request waits for its own tokens.
LONGEST_WAIT_SECONDS = 60.0


def cost(state: LearnedRateState, tokens: float) -> float:
    """Returns what a request counts: its tokens over those of a mean request; 1 if they are not known."""
    return max(1.0, tokens) / state.unit_tokens if state.unit_tokens and tokens > 0 else 1.0


def waited_cost(state: LearnedRateState, cost: float) -> float:
    """Returns what of the cost of a request is waited for, as in the wrong unit it may be much too large."""
    return min(cost, max(1.0, LONGEST_WAIT_SECONDS * (state.base_rps or state.first_rps)))


def sent(state: LearnedRateState, tokens: float) -> None:
    """Records a request that is sent; its tokens are 0 if they are not known."""
    state.sent_requests += 1
    if tokens <= 0:
        state.unknown_sends += 1
        return
    tokens = max(1.0, tokens)
    state.sent_tokens += tokens
    state.mean_sends = min(MEAN_SENDS, state.mean_sends + 1)
    state.mean_tokens += (tokens - state.mean_tokens) / state.mean_sends


def settle(state: LearnedRateState, reserved_tokens: float, used_tokens: float) -> None:
    """Corrects the tokens of a request by its answer.

    Args:
        state: The state.
        reserved_tokens: Tokens of the request, as given to `sent`.
        used_tokens: Those that the answer states.
    """
    if reserved_tokens <= 0:
        if state.unknown_sends < 1:
            return  # it was sent in an earlier interval
        state.unknown_sends -= 1
    state.sent_tokens = max(0.0, state.sent_tokens + used_tokens - reserved_tokens)
    if state.unit_tokens:
        further = cost(state, max(1.0, used_tokens)) - cost(state, reserved_tokens)
        state.sent = max(0.0, state.sent + further)
        state.total = max(0.0, state.total + further)


def rejected(state: LearnedRateState, sent_at: float, tokens: float, unit: QuotaUnit | None) -> None:
    """Records the first 429 of an overload, and changes the unit if there is evidence.

    Args:
        state: The state.
        sent_at: Time at which the request was sent.
        tokens: Tokens of the request, as given to `sent`.
        unit: What the quota counts, if the server names it.
    """
    was_expected = state.tokens_evidence > CHANGES
    if unit is not None:
        state.tokens_evidence = MOST_EVIDENCE if unit == "tokens" else -MOST_EVIDENCE
    if state.mean_tokens <= 0 or tokens <= 0:
        return
    if unit is None:
        size = tokens / state.mean_tokens
        evidence = state.tokens_evidence + math.log((size + LEAST_SIZE) / (1 + LEAST_SIZE))
        evidence += _of_interval(state, sent_at, tokens)
        state.tokens_evidence = max(-MOST_EVIDENCE, min(MOST_EVIDENCE, evidence))
    was_tokens = bool(state.unit_tokens)
    if state.tokens_evidence < -CHANGES and was_tokens:
        _change(state, 0.0)
    elif state.tokens_evidence > CHANGES or was_tokens:
        # Also without evidence: a unit of earlier, longer requests makes the measured number too small. A pool of
        # 265 requests per second took 11 times as long, as it had less than `shared_pool.LEAST_RPS` units.
        _change(state, state.mean_tokens)
    # What was measured while tokens were expected, but not known, is that of mean requests, and remains.
    is_other = was_tokens != bool(state.unit_tokens) and (was_tokens or not was_expected)
    if is_other and state.since >= 0:
        _begin(state, max(0.5, state.sent - cost(state, tokens)) / max(1e-3, sent_at - state.since))


def refund(state: LearnedRateState, tokens: float) -> None:
    """Records that a request of the interval was not admitted."""
    state.sent = max(0.0, state.sent - cost(state, tokens))
    state.sent_requests = max(0.0, state.sent_requests - 1)
    state.sent_tokens = max(0.0, state.sent_tokens - tokens)
    if tokens <= 0:
        state.unknown_sends = max(0.0, state.unknown_sends - 1)


def begin_interval(state: LearnedRateState, now: float) -> None:
    """Begins an interval without requests."""
    state.since, state.sent, state.sent_requests, state.sent_tokens = now, 0.0, 0.0, 0.0
    state.unknown_sends = 0.0


def _of_interval(state: LearnedRateState, sent_at: float, tokens: float) -> float:
    """Returns the evidence of the interval that a 429 of a request of so many tokens ends."""
    sends, seconds = state.sent_requests - 1, max(1e-3, sent_at - state.since)
    rps, tps = sends / seconds, (state.sent_tokens - tokens) / seconds
    is_held = state.held_seconds > MOST_HELD * seconds
    if state.since < 0 or sends < 1 or tps <= 0 or state.unknown_sends > 0 or is_held:
        return 0.0
    found = 0.0
    if state.last_sends:
        noise = NOISE_RATIO**2 + (NOISE_SENDS / sends) ** 2 + (NOISE_SENDS / state.last_sends) ** 2
        found = (math.log(rps / state.last_rps) ** 2 - math.log(tps / state.last_tps) ** 2) / (2 * noise)
    state.last_rps, state.last_tps, state.last_sends = rps, tps, sends
    return max(-MOST_OF_INTERVAL, min(MOST_OF_INTERVAL, found))


def _change(state: LearnedRateState, unit_tokens: float) -> None:
    """Counts in other units, of which a mean request is one."""
    factor = (state.unit_tokens or state.mean_tokens) / (unit_tokens or state.mean_tokens)
    state.unit_tokens = unit_tokens
    state.base_rps *= factor
    state.first_rps *= factor
    state.measured *= factor
    state.burst *= factor
    state.total *= factor
    state.sent = state.sent_tokens / unit_tokens + state.unknown_sends if unit_tokens else state.sent_requests


def _begin(state: LearnedRateState, rps: float) -> None:
    """Begins with a rate, as those before it were measured in the other unit."""
    state.first_rps = rps
    state.base_rps = state.measured = state.measured_seconds = state.growth_seconds = 0.0
    state.poor_intervals = state.is_pool_tested = 0.0
    # The rate of the interval without its holds would be that of the wrong unit.
    state.is_optimistic = 1.0
