"""Description of a contender: its module, jobs and requirements. Imports only the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Reason for the jobs with an unknown quota besides B.
NOT_ON_UNKNOWN_QUOTAS = dict.fromkeys("IJ", "is compared in job B, whose quota is unknown as well")


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One implementation of the jobs.

    Attributes:
        name: Name in tables and on the command line.
        module: Module that is run as `python -m MODULE TASK.json`.
        jobs: Letters of the jobs that it runs.
        distribution: Name of the distribution whose version is reported.
        requirements: Pinned requirements; empty if it runs in the project's own environment.
        options: Options passed to the module.
        environment: Environment variables added to its process.
        max_rows: Maximum number of rows by job letter, for jobs in which it is too slow for all rows. The figures
            are then those of fewer rows, and the table says so.
        supports_processes: Whether it can share a quota among several worker processes.
        has_machines: Whether its processes emulate separate machines, which share no temporary directory.
        is_text_checked: Whether answers are checked to begin with the name of the row; `False` if the contender
            does not return the unchanged text of the server.
        not_run: Reasons for omitted jobs, by job letter.
        remarks: Description of its setup, for readers of the results.
    """

    name: str
    module: str
    jobs: str
    distribution: str
    requirements: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    max_rows: Mapping[str, int] = field(default_factory=dict)
    supports_processes: bool = False
    has_machines: bool = False
    is_text_checked: bool = True
    not_run: Mapping[str, str] = field(default_factory=dict)
    remarks: str = ""

    @property
    def is_peer(self) -> bool:
        """Whether it needs a separate environment."""
        return bool(self.requirements)

    def process_counts(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Selects the numbers of worker processes with which it runs a job."""
        if not self.supports_processes:
            return (1,)
        return tuple(count for count in counts if count > 1 or not self.has_machines)

    @property
    def environment_name(self) -> str:
        """Name of its virtual environment."""
        return self.module.rpartition(".")[2]
