"""pace: learns the rate that a server admits whose quota is not known.

Between two 429s a server admits what its quota allows, whatever the shape of the quota: a bucket is empty at both,
a window is full at both. So the rate is the number of requests admitted between them over the time between them.
The job begins with a burst, which ends at the first 429; then the measured rate is used, and grows by a few per
cent until the next 429 measures it again. The first intervals are short, the later ones long, so that the number
of 429s grows with the logarithm of the number of requests. A later run begins with the learned rate. A pool that
rejects by chance has a law of its own, `shared_pool`.

docs/pacing.md has what was measured. Refused: doubling the rate until a 429, and the rate of the time since the
last overload (67 % of 300 simulated cases with few 429s, 62 % in time; this law 85 and 78 %); and, of variants of
this law on 180 other cases (88 and 84 %, where a pool might take longer):

- obeying each retry delay, however long (88 and 80 %)
- the measured rate after each 429, although a shared pool rejects some by chance (91 and 78 %)
- longer holds where a retry delay was too short, by which rows with nothing but 429s were given up
"""

from __future__ import annotations

from airflow_provider_llmbeam.engine.pacing import hold, shared_pool
from airflow_provider_llmbeam.engine.pacing.learned_rate_state import LearnedRateState


class LearnedRate:
    """Admits requests at the rate that is learned.

    Args:
        state: Initial state.
    """

    #: Shorter waits count as none: added to the time of the clock they might not change it.
    CLOCK_SECONDS = 1e-6
    #: Time for which unused requests are kept, to compensate for a late event loop.
    CREDIT_SECONDS = 0.02
    #: Rate before the first 429: a number or a share of the batch, whichever is larger, and more for each request
    #: sent. A 429 takes some 50 ms to arrive, in which 0.6 % of the batch are sent, so that few are rejected.
    START_RPS, START_SHARE, START_GROWTH = 32.0, 0.12, 0.5
    #: The rate grows by `CREEP` and its uncertainty over so many requests: at least, per request that measured
    #: it, and at most. Then it doubles, as the quota has grown.
    CREEP, GROWTH_SENDS, GROWTH_DOUBLES_SECONDS = 0.02, (5.0, 5.0, 400.0), 15.0
    #: After so many requests, a 429 is by chance, or the rate is a little too high: it is cut by so much only.
    ISOLATED_SENDS, ISOLATED_CUT = 30.0, 0.95
    #: With so many requests in flight until a 429 arrives, nothing is held before half of them are rejected.
    WATCHED_IN_FLIGHT = 3.0
    #: Time without a 429 after which the rate of the first requests doubles: others may have used the quota.
    UNMEASURED_SECONDS = 10.0
    #: Intervals that differ more from the measured rate replace it.
    CONSISTENT = 1.4
    #: Number of requests whose measurement is remembered.
    MEASURED_SENDS = 200.0
    #: Time without a request that is no part of an interval: nothing waited.
    PAUSE_SECONDS = 2.0
    #: Share of the burst of an earlier run that is sent at once, and time at its rate without a 429 after which
    #: the quota has grown.
    BURST_RATIO, NEXT_RUN_GROWTH_SECONDS = 0.8, 10.0

    def __init__(self, state: LearnedRateState | None = None) -> None:
        self.state = state or LearnedRateState()

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """Admits a request now, or returns how long to wait.

        Args:
            now: Time of the clock, in seconds.
            tokens: Not used: without a known quota of tokens they are not counted.
            backlog: Number of requests that are not yet answered, of the caller.

        Returns:
            0 if the request is admitted, and counted; else the seconds after which to try again.
        """
        state = self.state
        if state.started_at < 0:
            state.started_at = state.grown_at = state.request_line = now
        if state.is_next_run and state.since < 0 and state.sent >= self.BURST_RATIO * state.burst:
            state.since, state.sent = now, 0.0  # the rest of the run is at the rate of the earlier one
        if (held := state.held_until - now) > self.CLOCK_SECONDS:
            return held
        gap = 1 / self._rps(backlog)
        # The rate may have grown since the line was set.
        state.request_line = min(state.request_line, now + gap)
        credit = self.CREDIT_SECONDS if gap < self.CREDIT_SECONDS else 0.0
        line = max(state.request_line, now - credit)
        if line - now > self.CLOCK_SECONDS:
            return line - now
        if state.is_pool_tested and state.resumed >= 2:
            shared_pool.passed_test(state)
        late = now - max(state.request_line, state.held_until)
        if late > self.PAUSE_SECONDS:
            state.started_at += late
            state.since += late if state.since >= 0 else 0.0
        elif shared_pool.is_pool(state):
            shared_pool.sent(state, now - state.grown_at, is_waited_for=late <= max(gap, credit))
        elif self._grows(now) and late <= max(gap, credit):
            state.growth_seconds += now - state.grown_at
        if not state.resumed:
            state.resumed_at = now
        state.grown_at = now
        state.request_line = line + gap
        state.sent += 1
        state.resumed += 1
        state.total += 1
        return 0.0

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None:
        """Does nothing: tokens are not counted."""

    def rejected(
        self, now: float, retry_after_seconds: float | None, chance: float = 0.0, sent_at: float | None = None
    ) -> float:
        """Records a 429.

        Args:
            now: Time of the clock, in seconds.
            retry_after_seconds: Retry delay of the server, or `None`.
            chance: Random number, uniform in [0, 1), which spreads machines that were rejected together.
            sent_at: Time at which the request was sent; by default, now.

        Returns:
            Time until requests are sent again, in seconds.
        """
        state = self.state
        if state.started_at < 0:
            state.started_at = state.grown_at = state.request_line = now
        sent_at = now if sent_at is None else min(sent_at, now)
        took = min(1.0, max(0.002, now - sent_at))
        state.rejection_seconds += (1.0 if state.since < 0 else 0.2) * (took - state.rejection_seconds)
        state.grown_at = now
        state.total = max(0.0, state.total - 1)
        is_test = state.is_pool_tested and sent_at >= state.resumed_at
        if is_test:
            shared_pool.failed_test(state)
        if shared_pool.is_pool(state):
            return shared_pool.rejected(state, now, retry_after_seconds, sent_at)
        if state.since >= 0 and sent_at < state.resumed_at:
            return hold.extend(state, now, retry_after_seconds)
        state.sent = max(0.0, state.sent - 1)
        if is_test:
            return self._hold(now, retry_after_seconds, chance)
        # Until the first of them could be rejected, one request is sent after a hold.
        is_first = sent_at < state.resumed_at + state.rejection_seconds and state.holds > 0
        if state.sent >= 1 and not is_first:
            state.holds = 0.0
            if state.is_tested:
                state.trust, state.is_tested = 0.5 * state.trust, 0.0
        if state.holds == 0 and self._is_by_chance(now, sent_at, retry_after_seconds):
            return 0.0
        if state.since < 0 or (state.sent >= 1 and not is_first):
            self._measure(sent_at)
        elif state.holds and state.base_rps and not state.poor_intervals and not state.is_optimistic:
            cut = 0.85 if state.holds < 2 else 0.7
            state.base_rps = max(state.measured / state.measured_seconds, cut * state.base_rps)
        return self._hold(now, retry_after_seconds, chance)

    def _rps(self, backlog: float) -> float:
        state = self.state
        if state.since < 0:
            return max(self.START_RPS, self.START_SHARE * backlog) + self.START_GROWTH * state.sent
        if state.is_pool_tested:
            return shared_pool.test_rps(state)
        if shared_pool.is_pool(state):
            return state.base_rps
        return min(self._ramp_rps(), self._wanted_rps())

    def _ramp_rps(self) -> float:
        """Returns the rate after a hold, which begins with one request until its 429 could arrive."""
        state = self.state
        return (1 + (0.1 + 0.01 * state.measured) * state.resumed) / (1.5 * state.rejection_seconds)

    def _wanted_rps(self) -> float:
        state = self.state
        rps = state.base_rps or state.first_rps
        uncertainty = 1 / self._evidence()
        creep = (uncertainty + self.CREEP) * min(1.0, state.sent / self._growth_sends())
        doubled: float = 2.0 ** min(40.0, state.growth_seconds / self.GROWTH_DOUBLES_SECONDS)
        return rps * (1 + min(0.25 * uncertainty, 0.1) + creep) * doubled

    def _grows(self, now: float) -> bool:
        """Whether there was no 429 for so long that the quota is larger than measured, or was used by others."""
        state = self.state
        if state.since >= 0 and not state.base_rps and now - state.resumed_at > self.UNMEASURED_SECONDS:
            return True
        return state.sent > self._growth_sends()

    def _evidence(self) -> float:
        """Returns the number of requests that measured the rate; few before an interval did."""
        return self.state.measured or min(5.0, max(1.0, self.state.total / 4))

    def _growth_sends(self) -> float:
        least, per_measured, most = self.GROWTH_SENDS
        rps = self.state.base_rps or self.state.first_rps
        if self.state.is_next_run:
            return min(most, max(least, self.NEXT_RUN_GROWTH_SECONDS * rps))
        in_flight = rps * self.state.rejection_seconds
        return min(most * (1 + 0.5 * min(1.0, in_flight)), max(least, per_measured * self._evidence()))

    def _is_by_chance(self, now: float, sent_at: float, retry_after_seconds: float | None) -> bool:
        """Whether a 429 holds nothing, as most requests that were sent after the rejected one may be admitted."""
        state = self.state
        if not hold.is_obeyed(state, retry_after_seconds) and shared_pool.is_tested(state, now, sent_at):
            self._measure(sent_at)
            shared_pool.begin_test(state, now)
            return True
        in_flight = state.base_rps * (now - sent_at)
        if in_flight < self.WATCHED_IN_FLIGHT:
            return False
        if now > state.watched_until:
            state.watched_until, state.watched = now + 1.5 * (now - sent_at), 1.0
            self._measure(sent_at)
            return True
        state.watched += 1
        return state.watched < max(2.0, 0.5 * in_flight)

    def _hold(self, now: float, retry_after_seconds: float | None, chance: float) -> float:
        state = self.state
        seconds = hold.begin(state, now, retry_after_seconds, chance)
        passed = max(1e-3, state.held_until - state.started_at)
        state.first_rps = state.total / passed if state.total else self.START_RPS
        return seconds

    def _measure(self, sent_at: float) -> None:
        """Ends the interval with a 429 of a request sent at that time, and measures the rate."""
        state = self.state
        if state.since < 0:
            state.burst = state.total
        else:
            self._measure_interval(state.sent, max(1e-3, sent_at - state.since))
        state.is_next_run = 0.0
        state.since, state.sent, state.held_seconds, state.growth_seconds = sent_at, 0.0, 0.0, 0.0

    def _measure_interval(self, sent: float, seconds: float) -> None:
        state = self.state
        current_rps = min(self._wanted_rps(), self._ramp_rps())
        held_ratio = state.held_seconds / seconds
        if state.is_next_run:
            # The quota was not used up at the begin of the interval, so that only a lower rate is a measurement.
            if sent / seconds < state.base_rps / self.CONSISTENT:
                self._add(max(sent, 0.5), seconds)
        elif state.base_rps and held_ratio > 0.5 and sent < 8 and state.poor_intervals < 2:
            # A window that had just begun, or a bucket that was full: neither was in equilibrium.
            state.poor_intervals += 1
            state.base_rps = max(0.9**state.poor_intervals * state.base_rps, sent / seconds)
        elif held_ratio > 0.25 and sent >= 8 and not state.is_optimistic:
            # The hold may have been much too long.
            state.is_optimistic = 1.0
            state.base_rps = sent / max(1e-3, seconds - state.held_seconds)
            state.measured = min(sent, 30.0)
            state.measured_seconds = state.measured / state.base_rps
            self._keep(current_rps)
        else:
            state.poor_intervals = 0.0
            state.is_optimistic = state.is_optimistic if held_ratio > 0.25 else 0.0
            self._add(max(sent, 0.5), seconds)
            self._keep(current_rps)

    def _add(self, sent: float, seconds: float) -> None:
        """Adds an interval to those that measured the rate."""
        state = self.state
        if state.measured:
            ratio = sent / seconds / (state.measured / state.measured_seconds)
            weight = 0.4 if sent >= 4 and not 1 / self.CONSISTENT < ratio < self.CONSISTENT else 1.0
            weight = min(weight, self.MEASURED_SENDS / state.measured)
            state.measured, state.measured_seconds = weight * state.measured, weight * state.measured_seconds
        state.measured += sent
        state.measured_seconds += seconds
        state.base_rps = state.measured / state.measured_seconds

    def _keep(self, current_rps: float) -> None:
        """Keeps most of the present rate after an isolated 429; if it was too high, the next follows soon."""
        if self.state.sent >= self.ISOLATED_SENDS:
            self.state.base_rps = max(self.state.base_rps, self.ISOLATED_CUT * current_rps)
