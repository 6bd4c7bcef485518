"""Provisioned Throughput of models: which requests it serves. Every decision takes `now`."""

from __future__ import annotations

import threading

from llmbeam_sandbox.core.records import RequestType

_MINUTE_SECONDS = 60.0


class ProvisionedThroughput:
    """What is provisioned by model and location, and what is used of it in each minute of the clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bought: dict[tuple[str, str], int] = {}
        self._used: dict[tuple[str, str, float], int] = {}

    def provision(self, model: str, location: str, tokens_per_second: int) -> None:
        """Provisions throughput for a model in a location."""
        with self._lock:
            self._bought[model, location] = tokens_per_second

    def admit(self, now: float, model: str, location: str, tokens: int, *, is_shared: bool) -> RequestType:
        """Returns what serves a request of `tokens` input tokens, and counts it.

        Args:
            now: Time of the clock.
            model: Model name.
            location: Location in the path.
            tokens: Input tokens.
            is_shared: Whether the request asks to go past Provisioned Throughput.
        """
        with self._lock:
            limit = self._bought.get((model, location))
            if limit is None or is_shared:
                return "shared"
            key = (model, location, now // _MINUTE_SECONDS)
            used = self._used.get(key, 0) + tokens
            if used > limit * _MINUTE_SECONDS:
                return "spillover"
            self._used[key] = used
            return "dedicated"

    def charge_output(self, now: float, model: str, location: str, tokens: int) -> None:
        """Charges the tokens of a completed answer."""
        with self._lock:
            key = (model, location, now // _MINUTE_SECONDS)
            self._used[key] = self._used.get(key, 0) + tokens

    def clear(self) -> None:
        """Removes all of it."""
        with self._lock:
            self._bought.clear()
            self._used.clear()
