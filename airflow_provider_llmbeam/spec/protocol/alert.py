"""An alert of a run: what the job hands to the task that started it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

AlertKind = Literal["budget", "deadline", "failed_rows", "model_version", "drift", "latency", "lag", "cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert.

    Attributes:
        kind: What it is about.
        message: One sentence with the figures.
        value: The figure: a ratio of the budget or of the rows, seconds after the deadline, a population
            stability index, milliseconds, messages, or US dollars; `None` for a version of the model.
        threshold: What `value` has reached; `None` for a version of the model.
        job: Name of the job.
        is_resolved: Whether the figure is within its limit again, and an earlier alert is over.
    """

    kind: AlertKind
    message: str
    value: float | None = None
    threshold: float | None = None
    job: str
    is_resolved: bool = False

    @property
    def key(self) -> str:
        """What is raised once in a run: the kind, and for a budget its threshold, too."""
        return f"{self.kind} {self.threshold:g}" if self.kind == "budget" else self.kind

    def plain(self) -> dict[str, Any]:
        """Returns the alert as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Reads an alert from one line of JSON.

        Raises:
            ValueError: The line is not an alert.
        """
        try:
            alert = cls(**json.loads(line))
        except TypeError as error:
            raise ValueError(f"not an alert: {error}") from None
        if alert.kind not in get_args(AlertKind):
            raise ValueError(f"not a kind of alert: {alert.kind!r}")
        return alert
