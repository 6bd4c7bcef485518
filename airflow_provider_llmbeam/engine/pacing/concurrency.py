"""How many requests a server of one's own should have under way: a limit by latency."""

from __future__ import annotations

import math


class ConcurrencyLimit:
    """Lowers the number in flight when latency grows, since a saturated vLLM queues instead of rejecting.

    The law is Gradient2 (Netflix concurrency-limits): the limit follows the ratio of the long-term latency to the
    present one, with room for a small queue. Latency is per token of output, or else a run of long answers would
    look like a queue.

    Args:
        most: Upper bound, and the start.
    """

    LEAST = 4
    #: Growth of latency that is still no queue.
    TOLERANCE = 1.5
    SMOOTHING = 0.2
    #: Answers that the long-term mean remembers.
    LONG = 600.0
    #: Answers that make the present mean.
    SHORT = 20.0
    #: What a request costs beside its output, so that short answers do not look slow.
    OVERHEAD_TOKENS = 32
    #: A timeout or a 503 leaves this much.
    CUT = 0.9

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._least = float(min(self.LEAST, most))
        self._limit = float(most)
        self._long: float | None = None
        self._short = 0.0

    @property
    def limit(self) -> int:
        """Requests that may be under way."""
        return int(self._limit)

    def answered(self, latency_seconds: float, output_tokens: int) -> None:
        """Learns from an answer."""
        sample = latency_seconds / (self.OVERHEAD_TOKENS + output_tokens)
        if self._long is None:
            self._long = self._short = sample
            return
        self._short += (sample - self._short) / self.SHORT
        # At most twice the present mean, so that the end of a queue shows at once.
        self._long = min(self._long + (sample - self._long) / self.LONG, max(self._short, 1e-9) * 2)
        gradient = min(1.0, max(0.5, self.TOLERANCE * self._long / max(self._short, 1e-9)))
        wanted = self._limit * gradient + math.sqrt(self._limit)
        self._set(self._limit + self.SMOOTHING * (wanted - self._limit))

    def dropped(self) -> None:
        """Learns from a timeout or a refusal."""
        self._set(self._limit * self.CUT)

    def _set(self, limit: float) -> None:
        self._limit = min(self._most, max(self._least, limit))
