"""pace: decides when the next request may be sent. Pure arithmetic; the caller reads the clock.

One number is controlled: the share of the quota that this machine uses. It starts at 1 / `expected_workers`,
decreases when the server answers 429 and increases while it does not. Machines that share a quota and cannot
communicate find their shares this way. Between two 429s the server has admitted what it could: if the second
follows closely, the share falls to that. Without a known quota, `LearnedRate` is used instead.

The time of a state never goes back. Processes that share one read the clock, and wait for each other: each of them
lowered the line of requests to its own time, and 20 processes with 50 governors each sent 2.6 times the quota.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.retry import LONGEST_ADVISED_SECONDS


@dataclass(slots=True)
class GovernorState:
    """State of a governor; every field is a float, so that it fits a shared file. Times are of the caller's clock.

    Attributes:
        share: Share of the quota.
        usual_share: Smoothed share at which 429s were received: well below it there was headroom lately.
        is_probing: 1 before the first 429, then 0.
        grown_at: Time of the last update of `share`; negative before the first request.
        cut_at: Time of the last cut of `share`; the start, before the first cut.
        held_until: End of the current hold, before which nothing is sent.
        request_line: Earliest time of the next request.
        tokens: Tokens available now; negative is debt.
        tokens_at: Time of the last update of `tokens`.
        sent: Number of requests since `cut_at` that were not rejected.
        sent_tokens: Tokens of these requests.
        blind_holds: Number of 429s without a retry delay since the last answer.
        machines: Number of machines that share the quota.
    """

    share: float = 0.0
    usual_share: float = 0.0
    is_probing: float = 1.0
    grown_at: float = -1.0
    cut_at: float = -1e9
    held_until: float = -1e9
    request_line: float = -1e9
    tokens: float = 0.0
    tokens_at: float = -1.0
    sent: float = 0.0
    sent_tokens: float = 0.0
    blind_holds: float = 0.0
    machines: float = 1.0


class Governor:
    """Admits requests.

    Args:
        requests_per_minute: The whole quota of requests; `None` if there is only one of tokens.
        tokens_per_minute: The whole quota of tokens, input and output together; `None` if there is only one of
            requests.
        expected_workers: Number of machines that share the quota. Too many is safer than too few: simulated over
            an hour at 600 requests per minute and 4 machines, the right number gives 0.5 % 429s, four times too
            few 1.4 %, four times too many 0.1 %, all at 99.7 % of the quota or more.
        state: Initial state.
    """

    #: Shorter waits count as none: added to the time of the clock they might not change it.
    CLOCK_SECONDS = 1e-6
    #: Time for which unused requests are kept, to compensate for a late event loop; more would be a burst.
    REQUEST_CREDIT_SECONDS = 0.25
    #: Time for which unused tokens are kept. A longer prompt is admitted when so many tokens are available: a
    #: server whose own bucket holds 2 s always has room for it.
    TOKEN_CREDIT_SECONDS = 1.0
    #: Factor of the share per cut.
    CUT = 0.92
    #: Minimum and maximum number of cuts per 429; the rate admitted since the last one decides, if it is known.
    #: At most two for an isolated 429, as that mean is out of date (with eight, 4 machines with `expected_workers`
    #: 16 fell to 92 % of the quota); up to eight if it follows closely.
    CUTS, CLOSE_CUTS = (1, 2), (2, 8)
    CLOSE_CUTS_SECONDS, MEASURED_SENDS = 15.0, 4.0
    #: 429s within this time of a cut belong to the same overload, unless so many requests were admitted meanwhile:
    #: 0.5 % 429s instead of 1.8 % where a quota of 50 requests a second steps up and down.
    CUT_SECONDS, OVERLOAD_SENDS = 2.0, 8.0
    #: Weight of a new cut in the usual share, and of one that follows closely, as a series of 429s soon passes.
    SMOOTHING, CLOSE_SMOOTHING = 0.5, 0.05
    #: Growth undoes a cut within a probe period, so that one 429 is expected per so many requests: 0.3 %.
    SENDS_PER_PROBE = 300.0
    SHORTEST_PROBE_SECONDS, LONGEST_PROBE_SECONDS = 5.0, 600.0
    #: (probe periods without a 429 after which there is headroom, periods in which the share then doubles, at most
    #: a minute); the second pair applies two cuts or more below the usual share. Refused: that pair everywhere
    #: (4 machines with `expected_workers` 1: 2.6 % 429s).
    RECLAIM, RECLAIM_OF_USUAL, RECLAIM_DOUBLES_SECONDS = (1.3, 2.0), (1.0, 0.3), 60.0
    #: Maximum time of growth without requests, as a pause is no evidence of headroom.
    LONGEST_GROWTH_SECONDS = 60.0
    #: Doubling time before the first 429.
    PROBING_DOUBLES_SECONDS = 120.0
    #: First hold after a 429 without a retry delay, doubled with each further one until an answer arrives.
    FIRST_HOLD_SECONDS = 0.3
    LONGEST_BLIND_HOLD_SECONDS = 60.0
    #: Maximum hold, whatever the server asks for.
    LONGEST_HOLD_SECONDS = LONGEST_ADVISED_SECONDS
    #: Maximum debt, as the time in which the present share pays it: of usage above its reservation, and of all. So
    #: a server cannot stall a machine by what it reports, nor by the cuts of the share that follow.
    LONGEST_SETTLED_DEBT_SECONDS, LONGEST_DEBT_SECONDS = 60.0, 600.0

    def __init__(
        self,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        expected_workers: int = 1,
        state: GovernorState | None = None,
    ) -> None:
        self._rps = requests_per_minute / 60 if requests_per_minute else None
        self._tps = tokens_per_minute / 60 if tokens_per_minute else None
        share = 1.0 / expected_workers
        self.state = state or GovernorState(share=share, usual_share=share, machines=expected_workers)

    def share_among(self, machines: float) -> None:
        """Takes another number of machines that share the quota: the share changes in proportion."""
        state = self.state
        ratio = state.machines / machines
        state.share, state.usual_share = min(1.0, state.share * ratio), min(1.0, state.usual_share * ratio)
        state.machines = machines

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """Admits a request now, or returns how long to wait.

        Args:
            now: Time of the clock, in seconds.
            tokens: Input and expected output tokens of the request.
            backlog: Not used.

        Returns:
            0 if the request is admitted, and counted; else the seconds after which to try again.
        """
        state = self.state
        now = max(now, state.grown_at)
        if (held := state.held_until - now) > self.CLOCK_SECONDS:
            return held
        self._grow(now)
        seconds_per_request = self._seconds_per_request()
        # The share may have grown since the line was set, when it may have been as small as 1e-4.
        state.request_line = min(state.request_line, now + seconds_per_request)
        line = max(state.request_line, now - self.REQUEST_CREDIT_SECONDS)
        wait = max(line - now, self._token_wait(now, tokens))
        if wait > self.CLOCK_SECONDS:
            return wait
        state.request_line = line + seconds_per_request
        state.tokens -= tokens
        state.sent += 1
        state.sent_tokens += tokens
        return 0.0

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None:
        """Corrects a reservation once the usage is known: unused tokens are released, others become a debt.

        Args:
            reserved_tokens: Tokens given to `admit`.
            used_tokens: Billed tokens.
            is_answered: Whether the server answered, so that the next 429 is a new overload.
        """
        state = self.state
        excess = used_tokens - reserved_tokens
        if self._tps is not None and excess > 0:
            most = state.share * self._tps * self.LONGEST_SETTLED_DEBT_SECONDS
            excess = max(0.0, min(excess, state.tokens + most))
        state.tokens -= excess
        state.sent_tokens += excess
        if is_answered:
            state.blind_holds = 0.0

    def rejected(self, now: float, rejection: Rejection) -> float:
        """Records a 429: all requests are held, and the share is cut once per overload.

        Args:
            now: Time of the clock, in seconds.
            rejection: The 429.

        Returns:
            Duration of the hold, in seconds.
        """
        state = self.state
        now = max(now, state.grown_at)
        self._grow(now)
        state.sent = max(0.0, state.sent - 1)
        advice = self._blind_hold() if rejection.retry_after_seconds is None else rejection.retry_after_seconds
        advice = min(self.LONGEST_HOLD_SECONDS, max(advice, self.FIRST_HOLD_SECONDS))
        is_renewed = state.sent >= self.OVERLOAD_SENDS
        if state.is_probing or is_renewed or now - state.cut_at > self.CUT_SECONDS:
            self._cut(now)
        seconds = advice + rejection.chance * min(self._seconds_per_request(), 1.0)
        state.held_until = max(state.held_until, now + seconds)
        return seconds

    def _blind_hold(self) -> float:
        state = self.state
        seconds: float = self.FIRST_HOLD_SECONDS * 2.0 ** min(state.blind_holds, 10.0)
        if state.held_until <= state.grown_at:
            state.blind_holds += 1  # requests in flight when the hold began are no further evidence
        return min(self.LONGEST_BLIND_HOLD_SECONDS, seconds)

    def _cut(self, now: float) -> None:
        state = self.state
        is_close = not state.is_probing and now - state.cut_at < self.CLOSE_CUTS_SECONDS
        least, most = self.CLOSE_CUTS if is_close else self.CUTS
        smoothing = self.CLOSE_SMOOTHING if is_close else self.SMOOTHING
        state.usual_share += smoothing * (state.share - state.usual_share)
        wanted = min(self.CUT**least * state.share, self._let_through_share(now))
        state.share = max(1e-4, self.CUT**most * state.share, wanted)
        state.is_probing = 0.0
        state.sent, state.sent_tokens, state.cut_at = 0.0, 0.0, now

    def _let_through_share(self, now: float) -> float:
        """Returns the share of the quota that was admitted since the last cut; infinite if not measured."""
        state = self.state
        if state.sent < self.MEASURED_SENDS:
            return math.inf
        requests = state.sent / self._rps if self._rps else 0.0
        tokens = state.sent_tokens / self._tps if self._tps else 0.0
        return max(requests, tokens) / max(1e-3, now - state.cut_at)

    def _grow(self, now: float) -> None:
        state = self.state
        if state.grown_at < 0:
            state.grown_at = state.cut_at = state.request_line = now
        seconds = min(self.LONGEST_GROWTH_SECONDS, now - state.grown_at)
        state.grown_at = now
        if state.share != 1.0:
            state.share = min(1.0, state.share * 2 ** (seconds / self._doubling_seconds(now)))

    def _doubling_seconds(self, now: float) -> float:
        state, probe = self.state, self._probe_seconds()
        if state.is_probing:
            return self.PROBING_DOUBLES_SECONDS
        is_low = state.share < self.CUT**2 * state.usual_share
        quiet_probes, doubles_probes = self.RECLAIM_OF_USUAL if is_low else self.RECLAIM
        if now - state.cut_at > quiet_probes * probe:
            return min(self.RECLAIM_DOUBLES_SECONDS, doubles_probes * probe)
        return -probe / math.log2(self.CUT)

    def _probe_seconds(self) -> float:
        rps = self._rps or self.SENDS_PER_PROBE / self.SHORTEST_PROBE_SECONDS
        seconds = self.SENDS_PER_PROBE * self.state.machines / rps
        return min(self.LONGEST_PROBE_SECONDS, max(self.SHORTEST_PROBE_SECONDS, seconds))

    def _seconds_per_request(self) -> float:
        return 1 / (self.state.share * self._rps) if self._rps is not None else 0.0

    def _token_wait(self, now: float, tokens: float) -> float:
        if self._tps is None:
            return 0.0
        state = self.state
        tps = state.share * self._tps
        full = tps * self.TOKEN_CREDIT_SECONDS
        passed = max(0.0, now - state.tokens_at) if state.tokens_at >= 0 else self.TOKEN_CREDIT_SECONDS
        available = max(state.tokens + passed * tps, -tps * self.LONGEST_DEBT_SECONDS)
        state.tokens, state.tokens_at = min(full, available), now
        return (min(tokens, full) - state.tokens) / tps
