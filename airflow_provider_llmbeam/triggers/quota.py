"""Waits for room without a worker slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.dataflow.progress_log import Log
from airflow_provider_llmbeam.triggers.sensor import PatientTrigger

if TYPE_CHECKING:
    from airflow_provider_llmbeam.quota.monitor import QuotaWatch


class QuotaTrigger(PatientTrigger):
    """Looks at quotas until a job has room, and fires one event: `PatientEnd.to_event`.

    Args:
        question: A `spec.QuotaQuestion` as plain data, without a key: that is read from the connection.
        common: Arguments of `PatientTrigger`.
    """

    def __init__(self, *, question: Mapping[str, Any], **common: Any) -> None:
        super().__init__(**common)
        self.question = dict(question)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return "airflow_provider_llmbeam.triggers.quota.QuotaTrigger", {"question": self.question, **self.common}

    def looker(self, log: Log) -> QuotaWatch:
        """Makes what looks; it says in `log` what it sees of locations that it does not take."""
        # Here and not above: a Dag file that defers must not load Google's clients.
        from airflow_provider_llmbeam.quota.monitor import quota_watch

        return quota_watch(self.question, **self.connections, log=log)
