"""pace: learns the rate that a server admits whose quota is not known.

Between two 429s a server admits what its quota allows, whatever the shape of the quota: a bucket is empty at both,
a window is full at both. So the rate is the number of requests admitted between them over the time between them.
The job begins with a burst, which ends at the first 429; then the measured rate is used, and grows by a few per
cent until the next 429 measures it again. The first intervals are short, the later ones long, so that the number
of 429s grows with the logarithm of the number of requests. A later run begins with the learned rate. A pool that
rejects by chance has a law of its own, `shared_pool`.

docs/evidence/pacing.md has what was measured, and which variants were refused.
"""

from __future__ import annotations

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.unknown_quota import by_chance, hold, interval, quota_unit, shared_pool
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState


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
    #: sent. A 429 takes some 50 ms to arrive, in which 0.3 % of the batch are sent, so that few are rejected.
    START_RPS, START_SHARE, START_GROWTH = 20.0, 0.06, 2.0
    #: The rate grows by `CREEP` and its uncertainty over so many requests: at least, per request that measured
    #: it, and at most. Then it doubles, as the quota has grown.
    CREEP, GROWTH_SENDS, GROWTH_DOUBLES_SECONDS = 0.02, (5.0, 3.0, 400.0), 15.0
    #: Least rate per request of the first burst, which no quota takes so long to refill. In the 10 minutes after
    #: an hour in which a server had rejected nine of ten requests, 3,700 were sent, and 2 without this rate.
    LEAST_BURST_RATIO = 1 / 3000
    #: Cut of the rate after a hold that was too short.
    HOLD_CUT = 0.7
    #: With so many requests in flight until a 429 arrives, nothing is held before half of them are rejected.
    WATCHED_IN_FLIGHT = 3.0
    #: Time without a 429 after which the rate of the first requests doubles, and time in which it does: others may
    #: have used the quota.
    UNMEASURED_SECONDS, UNMEASURED_DOUBLES_SECONDS = 5.0, 5.0
    #: Time without a request that is no part of an interval: nothing waited.
    PAUSE_SECONDS = 2.0
    #: A slower rate of an earlier run doubles as fast as an unknown one: 429s by chance may have shown it.
    SLOW_RPS = 4.0
    #: Share of the burst of an earlier run that is sent at once, and time at its rate without a 429 after which
    #: the quota has grown.
    BURST_RATIO, NEXT_RUN_GROWTH_SECONDS = 0.8, 10.0

    def __init__(self, state: LearnedRateState | None = None) -> None:
        self.state = state or LearnedRateState()

    def share_among(self, machines: float) -> None:
        """Does nothing: what a machine gets of the quota is learned."""

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """Admits a request now, or returns how long to wait.

        Args:
            now: Time of the clock, in seconds.
            tokens: Input and expected output tokens of the request; 0 if they are not known.
            backlog: Number of requests that are not yet answered, of the caller.

        Returns:
            0 if the request is admitted, and counted; else the seconds after which to try again.
        """
        now = max(now, self.state.grown_at)  # as in `Governor`
        self.state = state = by_chance.decide(self.state, now)
        if state.started_at < 0:
            state.started_at = state.grown_at = state.request_line = now
        if (awaited := state.trial_until - now) > self.CLOCK_SECONDS and not state.trial_unsent:
            return awaited
        if state.is_next_run and state.since < 0 and state.sent >= self.BURST_RATIO * state.burst:
            quota_unit.begin_interval(state, now)  # the rest of the run is at the rate of the earlier one
        if (held := hold.ends_at(state) - now) > self.CLOCK_SECONDS:
            return held
        interval.end_outage(state)
        cost = quota_unit.cost(state, tokens)
        gap = 1 / self._rps(backlog)
        own_gap = 1 / self._rps(backlog, quota_unit.waited_cost(state, cost))
        # The rate may have grown since the line was set.
        state.request_line = min(state.request_line, now + gap)
        credit = self.CREDIT_SECONDS if own_gap < self.CREDIT_SECONDS else 0.0
        # A request waits for its own tokens, as a server's bucket has to hold them. What a hold has left out is
        # not caught up: 12 instead of 1,000 429s from a bucket without a burst that rejects within 2 ms.
        line = max(state.request_line + (own_gap - gap), now - credit, state.held_until)
        if line - now > self.CLOCK_SECONDS:
            return line - now
        if state.is_pool_tested and state.resumed >= 2:
            shared_pool.passed_test(state)
        late = now - max(state.request_line + (own_gap - gap), state.held_until)
        if late > self.PAUSE_SECONDS:
            state.started_at += late
            state.since += late if state.since >= 0 else 0.0
        elif shared_pool.is_pool(state):
            shared_pool.sent(state, now - state.grown_at, is_waited_for=late <= max(gap, credit))
        elif self._grows(now) and late <= max(gap, credit):
            state.growth_seconds += now - state.grown_at
        if not state.resumed:
            state.resumed_at = now
        by_chance.record_send(state, now)
        state.grown_at = now
        state.request_line = line + gap
        state.sent += cost
        state.resumed += 1
        state.total += cost
        quota_unit.sent(state, tokens)
        return 0.0

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None:
        """Corrects the tokens of a request that was answered; see `Governor.settle`."""
        if is_answered:
            quota_unit.settle(self.state, reserved_tokens, used_tokens)

    def rejected(self, now: float, rejection: Rejection) -> float:
        """Records a 429.

        Args:
            now: Time of the clock, in seconds.
            rejection: The 429.

        Returns:
            Time until requests are sent again, in seconds.
        """
        state = self.state
        now = max(now, state.grown_at)
        if state.started_at < 0:
            state.started_at = state.grown_at = state.request_line = now
        retry_after_seconds, tokens, chance = rejection.retry_after_seconds, rejection.tokens, rejection.chance
        sent_at = now if rejection.sent_at is None else min(rejection.sent_at, now)
        took = min(1.0, max(0.002, now - sent_at))
        state.rejection_seconds += (1.0 if state.since < 0 else 0.2) * (took - state.rejection_seconds)
        state.grown_at = now
        cost = quota_unit.cost(state, tokens)
        is_of_hold = state.since >= 0 and sent_at < state.resumed_at
        if not is_of_hold and by_chance.explains(state, now, sent_at, retry_after_seconds):
            state.total = max(0.0, state.total - cost)
            quota_unit.refund(state, tokens)
            return 0.0
        if state.is_by_chance:
            retry_after_seconds = None  # each request waits as it was told
        # Until the first of them could be rejected, one request is sent after a hold.
        is_first = sent_at < state.resumed_at + state.rejection_seconds and state.holds > 0
        is_new = state.since < 0 or (sent_at >= state.resumed_at and not is_first)
        if is_new and not shared_pool.is_pool(state):
            quota_unit.rejected(state, sent_at, tokens, rejection.unit)
        cost = quota_unit.cost(state, tokens)
        state.total = max(0.0, state.total - cost)
        # Also one of a request before the test: in a window, the 429s of its end follow each other.
        is_test = state.is_pool_tested > 0
        if is_test:
            shared_pool.failed_test(state)
        if shared_pool.is_pool(state):
            return shared_pool.rejected(state, now, retry_after_seconds, sent_at)
        if state.since >= 0 and sent_at < state.resumed_at and not is_test:
            return hold.extend(state, now, retry_after_seconds)
        quota_unit.refund(state, tokens)
        if is_test:
            return self._hold(now, retry_after_seconds, chance, cost)
        if state.sent >= 1 and not is_first:
            state.holds = 0.0
            if state.is_tested:
                state.trust, state.is_tested = 0.5 * state.trust, 0.0
        if state.holds == 0 and self._is_by_chance(now, sent_at, retry_after_seconds, cost):
            return 0.0
        if state.since < 0 or (state.sent >= 1 and not is_first):
            self._measure(sent_at)
        elif state.holds and state.base_rps and not state.poor_intervals:
            # Nothing is measured yet in a unit that has just changed.
            measured_rps = state.measured / state.measured_seconds if state.measured_seconds else 0.0
            state.base_rps = max(measured_rps, self.HOLD_CUT * state.base_rps)
        return self._hold(now, retry_after_seconds, chance, cost)

    def _rps(self, backlog: float, cost: float = 1.0) -> float:
        return by_chance.rps(self.state, self._law_rps(backlog, cost))

    def _law_rps(self, backlog: float, cost: float) -> float:
        state = self.state
        if state.since < 0:
            return max(self.START_RPS, self.START_SHARE * backlog) + self.START_GROWTH * state.sent
        if state.is_pool_tested:
            return shared_pool.test_rps(state)
        if shared_pool.is_pool(state):
            return state.base_rps
        return min(self._ramp_rps(), self._wanted_rps() / cost)

    def _ramp_rps(self) -> float:
        """Returns the rate after a hold, which begins with one request until its 429 could arrive."""
        state = self.state
        return (1 + (0.1 + 0.01 * state.measured) * state.resumed) / (1.5 * state.rejection_seconds)

    def _wanted_rps(self) -> float:
        state = self.state
        rps = self._known_rps()
        uncertainty = 1 / self._evidence()
        creep = (uncertainty + self.CREEP) * min(1.0, state.sent / self._growth_sends())
        is_slow = state.is_next_run and state.base_rps < self.SLOW_RPS * quota_unit.cost(state, state.mean_tokens)
        is_sure = state.base_rps and not is_slow
        seconds = self.GROWTH_DOUBLES_SECONDS if is_sure else self.UNMEASURED_DOUBLES_SECONDS
        doubled: float = 2.0 ** min(40.0, state.growth_seconds / seconds)
        return rps * (1 + creep) * doubled

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
        rps = self._known_rps()
        if self.state.is_next_run:
            return min(most, max(least, self.NEXT_RUN_GROWTH_SECONDS * rps))
        in_flight = rps * self.state.rejection_seconds
        return min(most * (1 + 0.5 * min(1.0, in_flight)), max(least, per_measured * self._evidence()))

    def _known_rps(self) -> float:
        return max(self.state.base_rps or self.state.first_rps, self.LEAST_BURST_RATIO * self.state.burst)

    def _is_by_chance(self, now: float, sent_at: float, retry_after_seconds: float | None, cost: float) -> bool:
        """Whether a 429 holds nothing, as most requests that were sent after the rejected one may be admitted."""
        state = self.state
        is_doubted = not (state.is_by_chance or hold.is_obeyed(state, retry_after_seconds, cost))
        if is_doubted and shared_pool.is_tested(state, now, sent_at):
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

    def _hold(self, now: float, retry_after_seconds: float | None, chance: float, cost: float) -> float:
        state = self.state
        cost = quota_unit.waited_cost(state, cost)
        seconds = hold.begin(state, now, retry_after_seconds, chance, cost)
        passed = max(1e-3, state.held_until - state.started_at)
        state.first_rps = state.total / passed if state.total else self.START_RPS
        if state.unit_tokens:
            # The refused request, which is sent first, has waited for its tokens.
            waited = 1 / self._rps(0.0, cost) - 1 / self._rps(0.0)
            state.request_line = min(state.request_line, state.held_until - waited)
        return seconds

    def _measure(self, sent_at: float) -> None:
        """Ends the interval with a 429 of a request sent at that time, and measures the rate."""
        state = self.state
        if state.since < 0:
            state.burst = state.total
        else:
            interval.end(state, max(1e-3, sent_at - state.since), min(self._wanted_rps(), self._ramp_rps()))
        state.is_next_run = 0.0
        quota_unit.begin_interval(state, sent_at)
        state.held_seconds = state.growth_seconds = 0.0
