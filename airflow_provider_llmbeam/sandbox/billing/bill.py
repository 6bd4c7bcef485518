"""What the emulated cloud charges for accelerators: by the second, from the moment they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_llmbeam.sandbox.billing.gpus import PRICES_AS_OF, Gpu
from airflow_provider_llmbeam.sandbox.core.timeline import Timeline

VERTEX = "vertex.deployedModel"
CLOUD_RUN = "run.instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one replica or instance costs, or has cost.

    Attributes:
        kind: "vertex.deployedModel" or "run.instance".
        name: The endpoint or service that it belongs to, in full.
        project: As its name has it.
        location: Region.
        labels: Of the endpoint or service, as they are now or were at the end.
        gpu: As Vertex AI calls it; "" without one.
        gpus: How many.
        usd_per_hour: For all of them.
        since: Seconds since the epoch.
        until: Seconds since the epoch; None while it runs.
        seconds: So far.
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
        """What it has cost so far."""
        return self.seconds * self.usd_per_hour / 3600

    def gpu_minutes(self, after: float) -> float:
        """Return the minutes of its accelerators later than `after`, in seconds since the epoch."""
        end = self.since + self.seconds
        return max(0.0, end - max(self.since, after)) * self.gpus / 60

    def fields(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "usd": self.usd}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """What is to be charged for.

    Attributes:
        kind: "vertex.deployedModel" or "run.instance".
        name: The endpoint or service that it belongs to, in full.
        gpu: None without one.
        gpus: How many.
        labels: Returns those of the endpoint or service.
    """

    kind: str
    name: str
    gpu: Gpu | None
    gpus: int
    labels: Callable[[], Mapping[str, str]]

    @property
    def usd_per_hour(self) -> float:
        """For all of its accelerators."""
        if self.gpu is None:
            return 0.0
        is_vertex = self.kind == VERTEX
        return self.gpus * (self.gpu.vertex_usd_per_hour if is_vertex else self.gpu.cloud_run_usd_per_hour)

    def charge(self, since: float, until: float | None, now: float) -> Charge:
        """Return what it costs, or has cost; times in seconds since the epoch."""
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
        timeline: What is due is done before the bill is read.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._running: dict[str, tuple[float, Rent]] = {}
        self._lines: list[Charge] = []

    @property
    def running(self) -> list[Charge]:
        """What is being charged for now, the oldest first."""
        return [charge for charge in self._charges() if charge.until is None]

    @property
    def lines(self) -> list[Charge]:
        """What has ended, the first begun first."""
        return [charge for charge in self._charges() if charge.until is not None]

    @property
    def usd(self) -> float:
        """All charges together, those still running included."""
        return sum(charge.usd for charge in self._charges())

    @property
    def usd_per_hour(self) -> float:
        """What goes on now costs so much an hour."""
        return sum(charge.usd_per_hour for charge in self.running)

    def gpu_minutes(self, after: float = 0.0) -> float:
        """Return the minutes of accelerators charged for, each by itself.

        Args:
            after: Only what was charged later than this, in seconds since the epoch.
        """
        return sum(charge.gpu_minutes(after) for charge in self._charges())

    def fields(self, after: float = 0.0) -> dict[str, Any]:
        """Return the bill for JSON; `after` as for `gpu_minutes`."""
        return {
            "running": [charge.fields() for charge in self.running],
            "lines": [charge.fields() for charge in self.lines],
            "gpu_minutes": self.gpu_minutes(after),
            "usd": self.usd,
            "usd_per_hour": self.usd_per_hour,
            "prices_as_of": PRICES_AS_OF,
        }

    def start(self, key: str, at: float, rent: Rent) -> None:
        """Charge for `rent` from `at`, in seconds since the epoch, until `stop` is told `key`."""
        with self._timeline.lock:
            self._running[key] = (at, rent)

    def stop(self, key: str, at: float) -> None:
        """Charge no longer; does nothing for what is not being charged for."""
        with self._timeline.lock:
            found = self._running.pop(key, None)
            if found is not None:
                since, rent = found
                self._lines.append(rent.charge(since, at, at))

    def clear(self) -> None:
        """Forget all charges."""
        with self._timeline.lock:
            self._running.clear()
            self._lines.clear()

    def _charges(self) -> list[Charge]:
        with self._timeline.lock:
            now = self._timeline.settle()
            charges = [*self._lines, *(rent.charge(since, None, now) for since, rent in self._running.values())]
        return sorted(charges, key=lambda charge: charge.since)
