"""Description of a contender: its interpreter, module and jobs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One implementation of the jobs.

    Attributes:
        name: Name in tables and on the command line.
        module: Module that is run as `python -m MODULE TASK.json`.
        jobs: Letters of the jobs it takes part in.
        distribution: Distribution whose version is reported.
        requirements: Pinned requirements; empty if it runs in the project's own environment.
        options: Options passed to the module.
        environment: Environment variables added to its process.
        rows_at_most: Maximum number of rows per job, if it is too slow for all rows. The figures are then those
            of fewer rows, and the table says so.
        with_processes: Whether it can share a quota among several worker processes.
        has_machines: Whether its processes emulate separate machines, which share no temporary directory.
        words_are_checked: Whether its answers are the server's unchanged text, which names the row.
        not_run: Reasons for omitted jobs, by letter.
        remarks: Description of its setup, for readers.
    """

    name: str
    module: str
    jobs: str
    distribution: str
    requirements: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    rows_at_most: Mapping[str, int] = field(default_factory=dict)
    with_processes: bool = False
    has_machines: bool = False
    words_are_checked: bool = True
    not_run: Mapping[str, str] = field(default_factory=dict)
    remarks: str = ""

    @property
    def is_peer(self) -> bool:
        """Whether it needs a separate environment."""
        return bool(self.requirements)

    def process_counts(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Selects the numbers of processes with which it takes part in a job."""
        if not self.with_processes:
            return (1,)
        return tuple(count for count in counts if count > 1 or not self.has_machines)

    @property
    def environment_name(self) -> str:
        """Name of its virtual environment."""
        return self.module.rpartition(".")[2]
