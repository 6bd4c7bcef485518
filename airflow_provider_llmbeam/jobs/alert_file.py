"""The file in which the process of a job writes its alerts, read while it grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.spec.protocol.alert import Alert


class AlertFile:
    """Reads the alerts of a process, each once.

    Args:
        path: The file, which need not exist yet.
        log: Log of the task.
    """

    def __init__(self, path: Path, log: TaskLog) -> None:
        self.path = path
        self._log = log
        self._read_bytes = 0

    def new(self) -> Iterator[Alert]:
        """Yields the alerts since the last call; a line that is not complete is left for the next one."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return
        self._read_bytes += len(whole) + 1
        for line in whole.decode(errors="replace").splitlines():
            try:
                yield Alert.from_json(line)
            except ValueError as error:
                self._log.warning("An alert of the job cannot be read: %s", error)
