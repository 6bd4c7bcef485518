"""What a service has found in texts, for steps that run in one process: now, just before, or in an earlier run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_provider_llmbeam.pipeline.privacy.dlp.inspector import Inspector
from airflow_provider_llmbeam.pipeline.privacy.dlp.store import FindingStore
from airflow_provider_llmbeam.pipeline.privacy.dlp.table import Cell, Inspected, Table
from airflow_provider_llmbeam.pipeline.privacy.finding import Finding


class Inspections:
    """Asks the service about texts that nothing is known of, and keeps what it finds.

    Args:
        inspector: Sends texts to the service.
        store: Findings of earlier runs.
    """

    def __init__(self, inspector: Inspector, store: FindingStore) -> None:
        self._inspector = inspector
        self._store = store
        self._stored: dict[str, tuple[Finding, ...]] | None = None
        self._last: Mapping[Cell, Inspected] = {}
        #: Size in bytes of the texts that were asked for, each once for those that follow each other.
        self.text_bytes = 0

    def of(self, cells: Collection[Cell]) -> Mapping[Cell, Inspected]:
        """Returns what was found in texts.

        Raises:
            JobSpecError: The service rejects every request.
            ModelUnavailableError: The service cannot be reached.
        """
        new = [cell for cell in cells if cell not in self._last]
        if not new:
            return self._last
        self.text_bytes += Table(tuple(new)).text_bytes
        if self._stored is None:
            self._stored = self._store.read()
        found = {cell: self._last[cell] for cell in cells if cell in self._last}
        names = {cell: self._store.name_of(cell) for cell in new}
        found |= {cell: self._stored[name] for cell, name in names.items() if name in self._stored}
        if unknown := [cell for cell in new if cell not in found]:
            inspected = self._inspector.inspect(unknown).found
            self._store.write(inspected)
            found |= inspected
        self._last = found
        return found
