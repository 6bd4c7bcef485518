"""The faults of a soak: some on every request, others in phases."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from llmbeam_sandbox import Fault, FixedWindow, Quota
from llmbeam_sandbox.core.faults import FaultKind, Faults
from llmbeam_sandbox.core.methods import Method, Methods

#: Kinds of faults whose answer was computed, and so billed, but does not arrive.
BILLED_KINDS: frozenset[FaultKind] = frozenset({"truncated", "drop", "disconnect"})
#: Faults on every request, with their probabilities.
ALWAYS: tuple[tuple[float, Fault], ...] = (
    (0.004, Fault(kind="error", http_status=500)),
    (0.004, Fault(kind="error", http_status=503)),
    (0.002, Fault(kind="disconnect")),
    (0.002, Fault(kind="drop")),
    (0.002, Fault(kind="truncated")),
    (0.001, Fault(kind="garbage")),
    (0.001, Fault(kind="garbage-json")),
    (0.0001, Fault(kind="hang")),
)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Behaviour of the server for a while.

    Attributes:
        name: Name in the samples.
        seconds: Least and greatest duration, in seconds.
        weight: Relative frequency.
        faults: Faults of each request with their probabilities, besides `ALWAYS`.
        latency_seconds: Mean latency, in seconds.
        rate: Admitted requests as a multiple of the rows per second; `None` for no limit.
        window_seconds: Length of the fixed windows in which the quota counts, in seconds; 0 for a token bucket.
        tells_delay: Whether a 429 of the quota names a delay.
        is_down: Whether nothing listens.
    """

    name: str
    seconds: tuple[float, float]
    weight: float = 1.0
    faults: tuple[tuple[float, Fault], ...] = ()
    latency_seconds: float = 0.1
    rate: float | None = None
    window_seconds: float = 0.0
    tells_delay: bool = True
    is_down: bool = False

    def quota(self, rows_per_second: float) -> Quota:
        """Returns the quota of the models."""
        if self.rate is None:
            return Quota()
        rate = self.rate * rows_per_second
        if self.window_seconds:
            requests = max(1, int(rate * self.window_seconds))
            window = FixedWindow(requests=requests, seconds=self.window_seconds)
            return Quota(window=window, tells_retry_delay=self.tells_delay)
        return Quota(requests_per_minute=max(1, int(60 * rate)), tells_retry_delay=self.tells_delay)


CALM = Phase(name="calm", seconds=(20, 60), weight=6)
_TOLD, _NOT_TOLD = (Fault(kind="rate-limit", retry_delay_seconds=seconds) for seconds in (1.0, None))
PHASES: tuple[Phase, ...] = (
    CALM,
    Phase(name="storm", seconds=(3, 15), faults=((0.5, _TOLD),)),
    Phase(name="blind storm", seconds=(3, 15), faults=((0.5, _NOT_TOLD),)),
    Phase(name="errors", seconds=(3, 15), faults=((0.3, Fault(kind="error", http_status=503)),)),
    Phase(name="broken lines", seconds=(3, 15), faults=((0.1, Fault(kind="disconnect")),)),
    Phase(name="slow", seconds=(10, 30), latency_seconds=0.6),
    Phase(name="low quota", seconds=(20, 60), rate=0.8),
    Phase(name="low quota, blind", seconds=(10, 30), rate=0.8, tells_delay=False),
    Phase(name="window", seconds=(30, 60), rate=1.1, window_seconds=10),
    Phase(name="down", seconds=(2, 8), weight=0.5, is_down=True),
)


def phases(rng: random.Random) -> Iterator[tuple[Phase, float]]:
    """Yields phases and their durations, in seconds, without end; every other phase is calm."""
    weights = [phase.weight for phase in PHASES]
    for number in itertools.count():
        phase = rng.choices(PHASES, weights)[0] if number % 2 else CALM
        yield phase, rng.uniform(*phase.seconds)


class RandomFaults(Faults):
    """Faults drawn for each request, with their number by kind.

    Args:
        methods: The methods of the sandbox.
        rng: Source of the draws.
    """

    def __init__(self, methods: Methods, rng: random.Random) -> None:
        super().__init__(methods)
        self._rng = rng
        self.phase = CALM
        self.is_over = False
        self.taken: Counter[FaultKind] = Counter()

    def take(self, method: Method, text: str) -> Fault | None:
        """Draws the fault of a request; none once the weather `is_over`."""
        if self.is_over:
            return None
        chance = self._rng.random()
        for probability, fault in (*self.phase.faults, *ALWAYS):
            if chance < probability:
                self.taken[fault.kind] += 1
                return fault
            chance -= probability
        return None
