"""Concurrency limit by latency, for self-hosted servers."""

from __future__ import annotations

import math


class ConcurrencyLimit:
    """Lowers the number of requests in flight when latency grows: a saturated vLLM queues instead of rejecting.

    The law is Gradient2 (Netflix concurrency-limits): the limit follows the ratio of the long-term latency to the
    current one, with room for a small queue. Latency is per output token; otherwise a series of long answers would
    look like a queue.

    Args:
        most: Upper bound and initial value.
    """

    LEAST = 4
    #: Growth of latency that does not count as a queue.
    TOLERANCE = 1.5
    SMOOTHING = 0.2
    #: Number of answers in the long-term mean.
    LONG = 600.0
    #: Number of answers in the current mean.
    SHORT = 20.0
    #: Cost of a request besides its output, so that short answers do not look slow.
    OVERHEAD_TOKENS = 32
    #: Factor of the limit after a timeout or a 503.
    CUT = 0.9

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._least = float(min(self.LEAST, most))
        self._limit = float(most)
        self._long: float | None = None
        self._short = 0.0

    @property
    def limit(self) -> int:
        """Maximum number of requests in flight."""
        return int(self._limit)

    def answered(self, latency_seconds: float, output_tokens: int) -> None:
        """Updates the limit with an answer."""
        sample = latency_seconds / (self.OVERHEAD_TOKENS + output_tokens)
        if self._long is None:
            self._long = self._short = sample
            return
        self._short += (sample - self._short) / self.SHORT
        # At most twice the current mean, so that the end of a queue has an effect at once.
        self._long = min(self._long + (sample - self._long) / self.LONG, max(self._short, 1e-9) * 2)
        gradient = min(1.0, max(0.5, self.TOLERANCE * self._long / max(self._short, 1e-9)))
        wanted = self._limit * gradient + math.sqrt(self._limit)
        self._set(self._limit + self.SMOOTHING * (wanted - self._limit))

    def dropped(self) -> None:
        """Lowers the limit after a timeout or a server error."""
        self._set(self._limit * self.CUT)

    def _set(self, limit: float) -> None:
        self._limit = min(self._most, max(self._least, limit))
