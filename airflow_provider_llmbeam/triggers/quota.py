"""Waits for quota without a worker slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.triggers.sensor import SensorTrigger

if TYPE_CHECKING:
    from airflow_provider_llmbeam.quota.poller import QuotaPoller


class QuotaTrigger(SensorTrigger):
    """Polls quotas until they suffice for a job, and fires one event: `SensorResult.to_event`.

    Args:
        question: A `spec.QuotaQuestion` as plain data, without a key, which is read from the connection.
        common: Arguments of `SensorTrigger`.
    """

    def __init__(self, *, question: Mapping[str, Any], **common: Any) -> None:
        super().__init__(**common)
        self.question = dict(question)

    def make_condition_poller(self, log: TaskLog) -> QuotaPoller:
        """Returns a new poller that logs the state of each location that it does not choose."""
        # Imported here, so that a Dag file that defers does not load Google's clients.
        from airflow_provider_llmbeam.quota.poller import QuotaPoller

        return QuotaPoller(self.question, **self.connections, log=log)
