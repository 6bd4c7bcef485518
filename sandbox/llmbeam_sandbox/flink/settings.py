"""Settings of the emulated Flink cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkSettings:
    """Settings of the emulated Flink cluster.

    Attributes:
        version: Version of Flink.
        task_managers: Number of task managers, each with one slot, >= 0.
        configuration: Configuration of the job manager.
        job_endpoint: Address of a job service of Beam whose jobs the cluster shows as its own; "" for none.

    Raises:
        ValueError: The number is negative.
    """

    version: str = "1.19.3"
    task_managers: int = 2
    configuration: Mapping[str, str] = field(default_factory=lambda: {"restart-strategy.type": "fixed-delay"})
    job_endpoint: str = ""

    def __post_init__(self) -> None:
        if self.task_managers < 0:
            raise ValueError(f"`FlinkSettings.task_managers` must be >= 0; got {self.task_managers!r}.")
