"""A quota that changes while the server runs."""

from __future__ import annotations

from collections.abc import Sequence

from llmbeam_sandbox.models.quota import Quota, QuotaLedger, Rejection, TokenBucket


class SteppedLedger(QuotaLedger):
    """Admits requests by a token bucket whose rate follows a schedule, counted from the first request.

    Args:
        quota: Quota whose `requests_per_minute` is 100 %.
        shares: Consecutive shares of that rate; the last one stays in effect.
        step_seconds: Length of a step, in seconds.

    Raises:
        ValueError: `quota` has no `requests_per_minute`, or `shares` is empty.
    """

    def __init__(self, quota: Quota, shares: Sequence[float], step_seconds: float) -> None:
        super().__init__(quota)
        if quota.requests_per_minute is None or not shares:
            raise ValueError(f"Steps need `requests_per_minute` and shares; got {quota!r} and {shares!r}.")
        self._per_minute = quota.requests_per_minute
        self._shares = tuple(shares)
        self._step_seconds = step_seconds
        self._bucket = self._new_bucket(0)
        self._step = 0
        self._started_at: float | None = None

    def admit(self, now: float, tokens: int, model: str = "") -> Rejection | None:
        """Charges one request, or returns its rejection; all models share one bucket."""
        self._advance_to(now)
        wait = self._bucket.wait_seconds(now, 1)
        if wait > 0:
            return Rejection(
                limit_name="requests-per-minute",
                limit=round(self._per_minute * self._shares[self._step]),
                retry_delay_seconds=wait if self.quota.tells_retry_delay else None,
            )
        self._bucket.take(now, 1)
        return None

    def _advance_to(self, now: float) -> None:
        if self._started_at is None:
            self._started_at = now
        reached = min(len(self._shares) - 1, int((now - self._started_at) // self._step_seconds))
        while self._step < reached:
            self._step += 1
            # The bucket refills at the old rate before the step, and at the new rate after it.
            self._bucket.wait_seconds(self._started_at + self._step * self._step_seconds, 0)
            new_bucket = self._new_bucket(self._step)
            self._bucket.per_second, self._bucket.capacity = new_bucket.per_second, new_bucket.capacity

    def _new_bucket(self, step: int) -> TokenBucket:
        per_minute = max(1, round(self._per_minute * self._shares[step]))
        return TokenBucket(per_minute=per_minute, burst_seconds=self.quota.burst_seconds)
