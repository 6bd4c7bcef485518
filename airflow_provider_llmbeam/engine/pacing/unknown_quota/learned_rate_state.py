"""State of a learned rate."""

from __future__ import annotations

from dataclasses import dataclass

#: Number of requests that a rate of an earlier run counts for: others may use more of the quota now, or less.
NEXT_RUN_SENDS = 50.0
#: Least rate of an earlier run; after five requests without a 429 it doubles, see `LearnedRate.GROWTH_SENDS`. With
#: 0.01 per second, of a server that was down or of whoever may write the file, 6 requests were sent in 10 minutes.
NEXT_RUN_LEAST_RPS = 0.1
#: Most evidence of an earlier run about what the quota counts: its prompts may have been others.
NEXT_RUN_EVIDENCE = 2.0


@dataclass(slots=True)
class LearnedRateState:
    """State of a learned rate; every field is a float, so that it fits a shared file.

    Times are of the caller's clock. An interval is the time between two 429s that belong to different overloads.

    Attributes:
        started_at: Time of the first request, later by the pauses since; negative before it.
        grown_at: Time of the last request, or of the last 429.
        held_until: End of the current hold, before which nothing is sent.
        request_line: Earliest time of the next request.
        resumed_at: Time of the first request since the last hold; the end of the hold before it.
        total: Number of admitted requests since `started_at`.
        since: Begin of the interval: time at which the rejected request was sent; negative before the first 429.
        sent: Number of admitted requests of the interval.
        held_seconds: Duration of the holds of the interval.
        growth_seconds: Time of the interval in which the rate doubled again and again.
        base_rps: Rate at the begin of the interval; 0 before one is measured.
        first_rps: Rate that is used before one is measured: that of all requests.
        measured: Number of requests of the intervals that measured the rate.
        measured_seconds: Duration of these intervals.
        resumed: Number of requests since the last hold.
        holds: Number of holds since an admitted request.
        rejection_seconds: Smoothed time from a request to its 429.
        watched_until: End of the time in which further 429s decide whether requests are held.
        watched: Number of 429s in that time.
        trust: Trust in retry delays that are much longer than the rate suggests, from 0 to 1.
        is_tested: 1 while a request is sent before such a retry delay is over.
        poor_intervals: Number of successive intervals that were too short to measure the rate.
        is_optimistic: 1 if the last interval was measured without its holds.
        burst: Number of requests that were admitted before the first 429, beyond the rate; 0 if not known.
        is_next_run: 1 until the first 429 of a run that began with the rate of an earlier one.
        chance: Evidence from 0 to 1 that requests are rejected by chance, as by a shared pool.
        is_pool_tested: 1 while two requests are sent at once, of which only a pool admits both.
        admitted_rps: Smoothed rate that a pool has admitted; 0 before a request to one.
        rejected_ratio: Smoothed share of requests that a pool has rejected.
        unit_tokens: Tokens that count as one request in all fields above; 0 if requests are counted.
        tokens_evidence: Logarithm of the odds that the quota counts tokens, not requests.
        mean_tokens: Mean tokens of a request.
        mean_sends: Number of requests of that mean.
        sent_requests: Number of requests of the interval.
        sent_tokens: Their tokens.
        last_rps: Requests per second of the interval before.
        last_tps: Its tokens per second.
        last_sends: Number of its requests; 0 if there is none.
        unknown_sends: Number of requests of the interval whose tokens are not known, and which are not answered.
        evidence: Evidence that requests are rejected by chance.
        apart_sends: Number of requests since the last 429.
        apart_at: Time of the first of them.
        trial_until: Time until which the 429s of requests in flight are awaited; negative if none are.
        trial_sends: Number of these requests.
        trial_rejected: Number of them that were rejected.
        trial_unsent: Number of them that are still to be sent.
        trials: Number of successive trials that have passed.
        share: Share of the requests that is rejected by chance, at any rate; 0 if none is known.
        excess: Number of 429s beyond the share.
    """

    started_at: float = -1.0
    grown_at: float = -1.0
    held_until: float = -1e9
    request_line: float = -1e9
    resumed_at: float = -1e9
    total: float = 0.0
    since: float = -1.0
    sent: float = 0.0
    held_seconds: float = 0.0
    growth_seconds: float = 0.0
    base_rps: float = 0.0
    first_rps: float = 0.0
    measured: float = 0.0
    measured_seconds: float = 0.0
    resumed: float = 0.0
    holds: float = 0.0
    rejection_seconds: float = 0.05
    watched_until: float = -1e9
    watched: float = 0.0
    trust: float = 0.5
    is_tested: float = 0.0
    poor_intervals: float = 0.0
    is_optimistic: float = 0.0
    burst: float = 0.0
    is_next_run: float = 0.0
    chance: float = 0.25
    is_pool_tested: float = 0.0
    admitted_rps: float = 0.0
    rejected_ratio: float = 0.02
    unit_tokens: float = 0.0
    tokens_evidence: float = 0.6
    mean_tokens: float = 0.0
    mean_sends: float = 0.0
    sent_requests: float = 0.0
    sent_tokens: float = 0.0
    last_rps: float = 0.0
    last_tps: float = 0.0
    last_sends: float = 0.0
    unknown_sends: float = 0.0
    evidence: float = 0.0
    apart_sends: float = 0.0
    apart_at: float = -1e9
    trial_until: float = -1.0
    trial_sends: float = 0.0
    trial_rejected: float = 0.0
    trial_unsent: float = 0.0
    trials: float = 0.0
    share: float = 0.0
    excess: float = 0.0

    @property
    def is_by_chance(self) -> bool:
        """Whether the server rejects a share of the requests by chance."""
        return self.share > 0

    def for_next_run(self) -> LearnedRateState:
        """Returns the state with which a later run begins: what was learned, as weaker evidence."""
        if self.is_by_chance:  # a quota below is soon found again, and a rate that is too low is not
            return LearnedRateState(share=self.share)
        if self.base_rps <= 0 or self.measured < 1:
            return LearnedRateState()
        measured, base_rps = min(self.measured, NEXT_RUN_SENDS), max(self.base_rps, NEXT_RUN_LEAST_RPS)
        return LearnedRateState(
            base_rps=base_rps,
            measured=measured,
            measured_seconds=measured / base_rps,
            rejection_seconds=self.rejection_seconds,
            trust=self.trust,
            burst=self.burst,
            is_next_run=1.0,
            chance=self.chance,
            unit_tokens=self.unit_tokens,
            tokens_evidence=max(-NEXT_RUN_EVIDENCE, min(NEXT_RUN_EVIDENCE, self.tokens_evidence)),
        )
