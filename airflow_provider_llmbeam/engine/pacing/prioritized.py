"""pace: a rate up to which requests are served first, and a shared pool above it. Pure arithmetic.

Standard PayGo of Vertex AI is such a service, see `spec.facts`. Up to the threshold nothing has to be learned: the
job begins with it, spread evenly, as a spike within a second is rejected even below. Above it the law of
`shared_pool` holds: the rate grows, and each 429 cuts it. A cut ends at the threshold, unless the rejected request
was sent at no more: then others use the threshold of the organisation, too, or it is not given now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.unknown_quota.shared_pool import FLOOR, SMOOTHING, cut, grow
from airflow_provider_llmbeam.engine.retry import LONGEST_ADVISED_SECONDS


@dataclass(slots=True)
class PrioritizedState:
    """State of a prioritized rate; every field is a float, so that it fits a shared file.

    Times are of the caller's clock.

    Attributes:
        tps: Rate, in tokens per second; 0 before the first request.
        line: Earliest time of the next request, by the tokens of those before it.
        request_line: The same, by their number.
        grown_at: Time of the last request; negative before the first one.
        held_until: End of the current hold, before which nothing is sent.
        above_at: Last time at which a request was sent at a rate above the threshold.
        admitted_tps: Smoothed rate that was admitted.
        mean_tokens: Smoothed tokens of a request; 0 before the first one.
        rejected_ratio: Smoothed share of requests that were rejected.
    """

    tps: float = 0.0
    line: float = -1e9
    request_line: float = -1e9
    grown_at: float = -1.0
    held_until: float = -1e9
    above_at: float = -1e9
    admitted_tps: float = 0.0
    mean_tokens: float = 0.0
    rejected_ratio: float = 0.02


class PrioritizedRate:
    """Admits requests at the rate that is served first, and what the pool admits above it.

    Args:
        tokens_per_minute: The threshold, input and output together.
        requests_per_minute: Limit of requests.
        expected_workers: Number of machines that share both.
        state: Initial state.
    """

    #: Shorter waits count as none: added to the time of the clock they might not change it.
    CLOCK_SECONDS = 1e-6
    #: Time for which an unused rate is kept, to compensate for a late event loop; more would be a spike.
    CREDIT_SECONDS = 0.02
    #: Rate over the threshold from which on a 429 says nothing of the threshold.
    ABOVE = 1.05
    #: Least rate over the threshold, and time in which one below it at least doubles.
    LEAST, RECOVERY_SECONDS = 1 / 30, 120.0
    #: Time over which the admitted rate is smoothed.
    HORIZON_SECONDS = 5.0
    #: Weight of a request in the mean of the tokens.
    MEAN_WEIGHT = 0.05
    #: Maximum debt by tokens that were not expected, as the time in which the present rate pays it.
    LONGEST_DEBT_SECONDS = 60.0

    def __init__(
        self,
        *,
        tokens_per_minute: float,
        requests_per_minute: float = math.inf,
        expected_workers: int = 1,
        state: PrioritizedState | None = None,
    ) -> None:
        self._whole_tps, self._whole_gap = tokens_per_minute / 60, 60 / requests_per_minute
        self.share_among(expected_workers)
        self.state = state or PrioritizedState()

    def share_among(self, machines: float) -> None:
        """Takes another number of machines: each has its fraction of what is served first."""
        self._threshold_tps, self._least_gap = self._whole_tps / machines, self._whole_gap * machines

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """See `Governor.admit`."""
        state, now = self.state, self._begin(now)
        if (wait := max(state.held_until, state.line, state.request_line) - now) > self.CLOCK_SECONDS:
            return wait
        gap, late, passed = tokens / state.tps, now - state.line, now - state.grown_at
        state.mean_tokens += (self.MEAN_WEIGHT if state.mean_tokens else 1.0) * (tokens - state.mean_tokens)
        state.rejected_ratio *= 1 - SMOOTHING
        state.admitted_tps *= math.exp(-passed / self.HORIZON_SECONDS)
        state.admitted_tps += tokens / self.HORIZON_SECONDS
        if late <= max(gap, self.CREDIT_SECONDS):  # the request waited for the rate
            state.tps *= max(grow(self._rps(), state.rejected_ratio, passed), self._recover(passed))
        if state.tps > self.ABOVE * self._threshold_tps:
            state.above_at = now
        state.grown_at = now
        state.line = max(state.line, now - self.CREDIT_SECONDS) + gap
        state.request_line = max(state.request_line, now - self.CREDIT_SECONDS) + self._least_gap
        return 0.0

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None:
        """Corrects a reservation once the usage is known; see `Governor.settle`. A 429 releases nothing."""
        state = self.state
        if state.tps and (is_answered or used_tokens):
            most = max(state.line, state.grown_at + self.LONGEST_DEBT_SECONDS)
            state.line = min(most, state.line + (used_tokens - reserved_tokens) / state.tps)

    def rejected(self, now: float, rejection: Rejection) -> float:
        """Records a 429: the rate is cut, above the threshold no lower than to it.

        Args:
            now: Time of the clock, in seconds.
            rejection: The 429.

        Returns:
            Duration of the hold, in seconds: none, unless the server states a delay below the threshold.
        """
        state, now = self.state, self._begin(now)
        sent_at = now if rejection.sent_at is None else rejection.sent_at
        state.rejected_ratio += SMOOTHING
        state.admitted_tps = max(0.0, state.admitted_tps - rejection.tokens / self.HORIZON_SECONDS)
        is_above = sent_at <= state.above_at
        lately = max(FLOOR * state.admitted_tps, self.LEAST * self._threshold_tps)
        least = self._threshold_tps if is_above else lately
        state.tps = max(min(state.tps, least), state.tps * math.exp(-cut(self._rps())))
        if is_above or rejection.retry_after_seconds is None:
            return 0.0
        state.held_until = max(state.held_until, now + min(LONGEST_ADVISED_SECONDS, rejection.retry_after_seconds))
        return state.held_until - now

    def _begin(self, now: float) -> float:
        state = self.state
        if state.grown_at < 0:
            state.tps = state.admitted_tps = self._threshold_tps
            state.grown_at = state.line = now
        return max(now, state.grown_at)

    def _recover(self, seconds: float) -> float:
        """Returns the least growth, however slow the requests are: none above the threshold."""
        is_below = self.state.tps < self._threshold_tps
        return float(2.0 ** (min(seconds, self.RECOVERY_SECONDS) / self.RECOVERY_SECONDS)) if is_below else 1.0

    def _rps(self) -> float:
        return self.state.tps / max(1.0, self.state.mean_tokens)
