"""Waits for a model to answer without a worker slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.triggers.sensor import SensorTrigger

if TYPE_CHECKING:
    from airflow_provider_llmbeam.endpoints.readiness import ReadinessPoller


class EndpointReadyTrigger(SensorTrigger):
    """Sends requests to a model until it answers in time, and fires one event: `SensorResult.to_event`.

    Args:
        model: A model spec as plain data, without its key, which is read from the connection.
        max_latency_seconds: Longest time for the whole answer, in seconds; a slower endpoint is not ready yet.
        embeds: Whether the request asks for a vector.
        common: Arguments of `SensorTrigger`.
    """

    def __init__(
        self,
        *,
        model: Mapping[str, Any],
        max_latency_seconds: float = 30.0,
        embeds: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.model = model
        self.max_latency_seconds = max_latency_seconds
        self.embeds = embeds

    def make_condition_poller(self, log: TaskLog) -> ReadinessPoller:
        """Returns a new poller that sends one request per poll; it logs nothing itself."""
        # Imported here, so that a Dag file that defers does not load the HTTP client.
        from airflow_provider_llmbeam.endpoints.readiness import readiness_poller

        return readiness_poller(
            self.model, max_latency_seconds=self.max_latency_seconds, embeds=self.embeds, **self.connections
        )
