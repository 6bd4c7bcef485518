"""Rates of the keys of messages. Pure."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.limits import PerKey

#: Number of keys after which those that are at rest are forgotten.
_SWEEP = 10_000


class KeyLimits:
    """Token buckets of the keys of this process; a key is in one partition, and so with one member.

    Args:
        limit: The limit of each key.
    """

    def __init__(self, limit: PerKey) -> None:
        self._seconds = 60.0 / limit.requests_per_minute
        self._slack_seconds = (limit.burst - 1) * self._seconds
        self._waits = limit.on_exceeded == "wait"
        #: Time at which the bucket of a key is full again.
        self._full_at: dict[bytes, float] = {}
        self._sweep_at = _SWEEP

    def admit(self, key: bytes, now: float) -> float | None:
        """Admits a request of a key; returns the time until it is sent, in seconds, or `None` if it is not."""
        full_at = max(self._full_at.get(key, now), now)
        wait = max(0.0, full_at - self._slack_seconds - now)
        if wait > 0 and not self._waits:
            return None
        self._full_at[key] = full_at + self._seconds
        if len(self._full_at) > self._sweep_at:
            self._full_at = {each: at for each, at in self._full_at.items() if at > now}
            self._sweep_at = 2 * len(self._full_at) + _SWEEP
        return wait
