"""What a contender is: an interpreter, a module, and the jobs it takes part in. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way to do a job.

    Attributes:
        name: In tables and on the command line.
        module: Run as `python -m MODULE TASK.json`.
        jobs: Letters of the jobs it takes part in.
        distribution: Whose version is reported.
        requirements: Pinned; empty means that it runs in the project's own environment.
        options: Handed to the module.
        environment: Added to its process.
        rows_at_most: Per job, for one so slow that all rows would take too long. Figures are then those of
            fewer rows, and the table says so.
        with_processes: Whether it can share a quota among several worker processes.
        has_machines: Each of them believes that it is alone on its machine; they share no temporary directory.
        words_are_checked: Whether its answers are the server's own text, which names the row.
        not_run: Why a job is left out, per letter.
        remarks: How it was set up, for people.
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
        """Whether it needs an environment of its own."""
        return bool(self.requirements)

    def process_counts(self, counts: tuple[int, ...]) -> tuple[int, ...]:
        """Picks the cases it takes part in, of a job that is run with these numbers of processes."""
        if not self.with_processes:
            return (1,)
        return tuple(count for count in counts if count > 1 or not self.has_machines)

    @property
    def environment_name(self) -> str:
        """Name of its virtual environment."""
        return self.module.rpartition(".")[2]
