"""Settings of the emulated Dataflow."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowSettings:
    """Settings of the jobs of the emulated Dataflow.

    Attributes:
        workers: Number of SDK harnesses of each job, >= 1; a job that allows fewer workers gets fewer.
        bundle_repeats: Additional runs of each bundle whose outputs are discarded, as after the loss of a worker,
            >= 0.
        shuffles_retries: Whether each further attempt of a bundle gets its elements in a random order, so that a
            step that batches them batches others together.
        start_seconds: Delay before a job runs, in real seconds, >= 0.
        projects: Existing projects; None means that all exist.
        lists_labels: Whether a list of jobs has their labels. As documented it has summaries, which have none.
        flex_launcher: Command in place of the container of a flex template, to which the options are added; by
            default that of this package.

    Raises:
        ValueError: A number is out of bounds, or the command is empty.
    """

    workers: int = 1
    bundle_repeats: int = 0
    shuffles_retries: bool = False
    start_seconds: float = 0.0
    projects: tuple[str, ...] | None = None
    lists_labels: bool = False
    flex_launcher: tuple[str, ...] = (sys.executable, "-m", "airflow_provider_llmbeam.pipeline.flex_template")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"`DataflowSettings.workers` must be >= 1; got {self.workers!r}.")
        if self.bundle_repeats < 0:
            raise ValueError(f"`DataflowSettings.bundle_repeats` must be >= 0; got {self.bundle_repeats!r}.")
        if not self.start_seconds >= 0:
            raise ValueError(f"`DataflowSettings.start_seconds` must be >= 0; got {self.start_seconds!r}.")
        if not self.flex_launcher:
            raise ValueError(
                "`DataflowSettings.flex_launcher` must be a command, such as (sys.executable, 'launch.py')."
            )
