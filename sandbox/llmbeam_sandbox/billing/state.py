"""The bill for accelerators: charged by the second, from the moment of the request. No HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from llmbeam_sandbox.billing.gpus import PRICES_AS_OF, Gpu
from llmbeam_sandbox.core.clock import Timeline

VERTEX = "vertex.deployedModel"
CLOUD_RUN = "run.instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The charge for one replica or instance.

    Attributes:
        kind: "vertex.deployedModel" or "run.instance".
        name: Full name of the endpoint or service.
        project: Project in the name.
        location: Region.
        labels: Current labels of the endpoint or service, or those at the end.
        gpu: Accelerator, by Vertex AI's name; "" without one.
        gpus: Number of accelerators.
        usd_per_hour: Price of all its accelerators, in USD per hour.
        since: Start, in seconds since the epoch.
        until: End, in seconds since the epoch; None while it runs.
        seconds: Duration so far, in seconds.
    """

    kind: str
    name: str
    project: str
    location: str
    labels: Mapping[str, str]
    gpu: str
    gpus: int
    usd_per_hour: float
    since: float
    until: float | None
    seconds: float

    @property
    def usd(self) -> float:
        """Cost so far, in USD."""
        return self.seconds * self.usd_per_hour / 3600

    def gpu_minutes(self, after: float) -> float:
        """Returns the accelerator minutes after `after`, in seconds since the epoch."""
        end = self.since + self.seconds
        return max(0.0, end - max(self.since, after)) * self.gpus / 60

    def fields(self) -> dict[str, Any]:
        """Returns the charge for JSON."""
        return {**asdict(self), "usd": self.usd}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """A replica or instance to charge for.

    Attributes:
        kind: "vertex.deployedModel" or "run.instance".
        name: Full name of the endpoint or service.
        gpu: Kind of accelerator; None without one.
        gpus: Number of accelerators.
        labels: Returns the labels of the endpoint or service.
    """

    kind: str
    name: str
    gpu: Gpu | None
    gpus: int
    labels: Callable[[], Mapping[str, str]]

    @property
    def usd_per_hour(self) -> float:
        """Price of all its accelerators, in USD per hour."""
        if self.gpu is None:
            return 0.0
        is_vertex = self.kind == VERTEX
        return self.gpus * (self.gpu.vertex_usd_per_hour if is_vertex else self.gpu.cloud_run_usd_per_hour)

    def charge(self, since: float, until: float | None, now: float) -> Charge:
        """Returns the charge; times in seconds since the epoch."""
        _, project, _, location, *_ = self.name.split("/")
        return Charge(
            kind=self.kind,
            name=self.name,
            project=project,
            location=location,
            labels=dict(self.labels()),
            gpu=self.gpu.name if self.gpu else "",
            gpus=self.gpus,
            usd_per_hour=self.usd_per_hour,
            since=since,
            until=until,
            seconds=(now if until is None else until) - since,
        )


class Bill:
    """Everything charged since the start or the last reset. Safe to read from any thread.

    Args:
        timeline: Scheduled actions, which are run before the bill is read.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._running: dict[str, tuple[float, Rent]] = {}
        self._lines: list[Charge] = []

    @property
    def running(self) -> list[Charge]:
        """Charges that are running, the oldest first."""
        return [charge for charge in self._charges() if charge.until is None]

    @property
    def lines(self) -> list[Charge]:
        """Charges that have ended, the oldest first."""
        return [charge for charge in self._charges() if charge.until is not None]

    @property
    def usd(self) -> float:
        """Sum of all charges, including those that are running, in USD."""
        return sum(charge.usd for charge in self._charges())

    @property
    def usd_per_hour(self) -> float:
        """Price of all that is running, in USD per hour."""
        return sum(charge.usd_per_hour for charge in self.running)

    def gpu_minutes(self, after: float = 0.0) -> float:
        """Returns the accelerator minutes of all charges.

        Args:
            after: Time from which minutes count, in seconds since the epoch.
        """
        return sum(charge.gpu_minutes(after) for charge in self._charges())

    def fields(self, after: float = 0.0) -> dict[str, Any]:
        """Returns the bill for JSON; `after` as for `gpu_minutes`."""
        return {
            "running": [charge.fields() for charge in self.running],
            "lines": [charge.fields() for charge in self.lines],
            "gpu_minutes": self.gpu_minutes(after),
            "usd": self.usd,
            "usd_per_hour": self.usd_per_hour,
            "prices_as_of": PRICES_AS_OF,
        }

    def start(self, key: str, at: float, rent: Rent) -> None:
        """Starts to charge for `rent` at `at`, in seconds since the epoch, until `stop(key)`."""
        with self._timeline.lock:
            self._running[key] = (at, rent)

    def stop(self, key: str, at: float) -> None:
        """Ends a charge; does nothing if there is none for `key`."""
        with self._timeline.lock:
            found = self._running.pop(key, None)
            if found is not None:
                since, rent = found
                self._lines.append(rent.charge(since, at, at))

    def clear(self) -> None:
        """Removes all charges."""
        with self._timeline.lock:
            self._running.clear()
            self._lines.clear()

    def _charges(self) -> list[Charge]:
        with self._timeline.settled() as now:
            charges = [*self._lines, *(rent.charge(since, None, now) for since, rent in self._running.values())]
        return sorted(charges, key=lambda charge: charge.since)
