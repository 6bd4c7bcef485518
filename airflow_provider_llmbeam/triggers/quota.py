"""Waits for room without a worker slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.triggers.sensor import SensorTrigger

if TYPE_CHECKING:
    from airflow_provider_llmbeam.quota.poller import QuotaPoller


class QuotaTrigger(SensorTrigger):
    """Looks at quotas until a job has room, and fires one event: `SensorResult.to_event`.

    Args:
        question: A `spec.QuotaQuestion` as plain data, without a key: that is read from the connection.
        common: Arguments of `SensorTrigger`.
    """

    def __init__(self, *, question: Mapping[str, Any], **common: Any) -> None:
        super().__init__(**common)
        self.question = dict(question)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        return "airflow_provider_llmbeam.triggers.quota.QuotaTrigger", {"question": self.question, **self.common}

    def looker(self, log: TaskLog) -> QuotaPoller:
        """Makes what looks; it says in `log` what it sees of locations that it does not take."""
        # Here and not above: a Dag file that defers must not load Google's clients.
        from airflow_provider_llmbeam.quota.poller import quota_poller

        return quota_poller(self.question, **self.connections, log=log)
