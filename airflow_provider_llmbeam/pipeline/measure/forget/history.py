"""The turns of the rows to forget, in the history of conversations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.conversation.order import turn_name
from airflow_provider_llmbeam.pipeline.conversation.store import decode_turn, history_directory, read_turns
from airflow_provider_llmbeam.pipeline.elements import FailedRow
from airflow_provider_llmbeam.pipeline.measure.forget.keys import NamedKeys
from airflow_provider_llmbeam.pipeline.measure.forget.rewrite import lines_removed
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of
from airflow_provider_llmbeam.spec.job import JobSpec


@dataclass(frozen=True)
class TurnsToForget:
    """The turns of the rows to forget.

    Attributes:
        files: Files of the history.
        names: Names of the turns, as the history has them.
    """

    files: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, spec: JobSpec, keys: NamedKeys, *, all_jobs: bool) -> Self:
        """Returns the turns of some rows of a job; none without conversations.

        Args:
            spec: The job.
            keys: Keys of the rows.
            all_jobs: Whether the histories of the other tasks below `state_uri` are searched, too.
        """
        if spec.conversation is None:
            return cls()
        directory = history_directory(spec)
        if all_jobs:
            directory = f"{directory.rstrip('/').rpartition('/')[0]}/*/"
        masker, names = masker_of(spec), set[str]()
        for row in keys.rows():
            masked = row if masker is None else masker.row(row)
            if not isinstance(masked, FailedRow):
                names.add(turn_name(masked, spec.source.key))
        return cls(tuple(sorted(storage.match(f"{directory}*.jsonl"))), frozenset(names))

    def fingerprints(self) -> Iterator[str]:
        """Yields their fingerprints."""
        for uri in self.files:
            for _, turn in read_turns(uri):
                if turn.name in self.names:
                    yield turn.fingerprint

    def remove(self, *, dry_run: bool) -> Iterator[tuple[str, int]]:
        """Removes them, or counts them alone; yields each file and the number of its turns."""
        for uri in self.files:
            yield uri, lines_removed(uri, self._has_line, dry_run=dry_run)

    def _has_line(self, line: bytes) -> bool:
        try:
            return decode_turn(line)[1].name in self.names
        except ValueError:
            return False
