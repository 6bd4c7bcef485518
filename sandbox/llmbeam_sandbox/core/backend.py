"""The state that all services share: the clock, the faults and the log of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from llmbeam_sandbox.core.access import Access
from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.core.faults import Faults
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.records import RequestLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The arrival of a request.

    Attributes:
        received_at: Time of the arrival, in seconds since the epoch.
        epoch: Epoch of the request log at that time.
    """

    received_at: float
    epoch: int


class Backend:
    """The state that all services share.

    Args:
        clock: Clock of records and quotas; returns seconds since the epoch.
        methods: The methods of all services.
    """

    def __init__(self, clock: Clock, methods: Methods) -> None:
        self.access = Access()
        self.methods = methods
        self.faults = Faults(methods)
        self.log = RequestLog(methods)
        self.refused_hosts: Counter[str] = Counter()
        self.on_reset: list[Callable[[], None]] = []
        self._clock = clock

    def reset(self) -> None:
        """Clears the request log, the faults, the refused hosts and the state of all services."""
        self.log.clear()
        self.faults.clear()
        self.refused_hosts.clear()
        for clear in self.on_reset:
            clear()

    def now(self) -> float:
        """Returns the time, in seconds since the epoch."""
        return self._clock()

    def arrival(self) -> Arrival:
        """Returns the arrival of a request that has come in now."""
        return Arrival(received_at=self._clock(), epoch=self.log.epoch)
