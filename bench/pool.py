"""A quota that others use as well."""

from __future__ import annotations

import random

from llmbeam_sandbox.models.quota import Quota, QuotaLedger, Rejection

from bench.simulation.servers import Pool


class PoolLedger(QuotaLedger):
    """Admits requests by the pool of the simulation, from the first request on; 429s have no advice.

    Args:
        per_minute: Mean capacity, in requests per minute.
    """

    def __init__(self, per_minute: int) -> None:
        super().__init__(Quota())
        self._per_minute = per_minute
        self._pool = Pool(per_minute / 60, random.Random(per_minute))
        self._started_at: float | None = None

    def admit(self, now: float, tokens: int, model: str = "") -> Rejection | None:
        """Admits one request, or returns its rejection; all models share the pool."""
        if self._started_at is None:
            self._started_at = now
        if self._pool.wait_seconds(now - self._started_at) == 0:
            return None
        return Rejection(limit_name="requests-per-minute", limit=self._per_minute, retry_delay_seconds=None)

    def capacity(self, seconds: float) -> float:
        """Returns the number of requests that the pool had capacity for in the `seconds` after the first one."""
        steps = self._pool.steps
        ends = [*(start for start, _ in steps[1:]), seconds]
        return sum(
            rps * max(0.0, min(end, seconds) - start) for (start, rps), end in zip(steps, ends, strict=True)
        )
