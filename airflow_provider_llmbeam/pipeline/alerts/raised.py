"""The alerts that a run has raised, over all its tries."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.alert import Alert

_log = logging.getLogger("llmbeam")


class RaisedAlerts:
    """Raises each alert of a run once: a warning in the log, and a line in a file that the task reads.

    What was raised is kept in the directory of the job, since Airflow deletes the XComs of a task at its next try.
    A task that is killed between the file and its notifiers loses an alert rather than repeat it.

    Args:
        spec: The job.
        path: File that the task reads; `None` for none.
    """

    def __init__(self, spec: JobSpec, path: Path | None) -> None:
        self._uri = spec.paths.alerts_uri
        self._path = path
        self._keys = self._read()

    def raise_new(self, alerts: Iterable[Alert]) -> None:
        """Raises those alerts that the run has not raised yet."""
        for alert in alerts:
            if alert.key in self._keys:
                continue
            self._keys.add(alert.key)
            self._write()
            _log.warning("Alert: %s", alert.message)
            self._hand_over(alert)

    def forget(self) -> None:
        """Forgets what was raised: the run is over, and the next one of the same name raises its own."""
        try:
            storage.delete([self._uri] if storage.exists(self._uri) else [])
        except Exception as error:  # noqa: BLE001 - the job is complete
            _log.warning("The raised alerts %r could not be deleted: %s", self._uri, error)

    def _hand_over(self, alert: Alert) -> None:
        if self._path is None:
            return
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(alert)) + "\n")
        except OSError as error:  # the job goes on, e.g. with a full disk
            _log.warning(
                "No notifier is called for this alert: %r could not be written: %s", str(self._path), error
            )

    def _read(self) -> set[str]:
        try:
            return set(json.loads(storage.read(self._uri))) if storage.exists(self._uri) else set()
        except Exception as error:  # noqa: BLE001 - an alert that is repeated is better than none
            _log.warning("The raised alerts %r could not be read, and may be repeated: %s", self._uri, error)
            return set()

    def _write(self) -> None:
        try:
            storage.make_private(self._uri.rpartition("/")[0])
            storage.replace(self._uri, json.dumps(sorted(self._keys)).encode())
        except Exception as error:  # noqa: BLE001 - the job goes on
            _log.warning("The raised alerts %r could not be written, and may be repeated: %s", self._uri, error)
