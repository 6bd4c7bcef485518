"""Waits for a model to answer without a worker slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.hooks.progress_log import Log
from airflow_provider_llmbeam.triggers.patient import PatientTrigger

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.ready_watch import ReadyWatch


class EndpointReadyTrigger(PatientTrigger):
    """Asks a model until it answers in time, and fires one event: `PatientEnd.to_event`.

    Args:
        model: A model spec as plain data, without its key: that is read from the connection.
        patience: `Patience.to_dict`.
        max_latency_seconds: A slower answer is none yet.
        embeds: Asks for a vector.
        llmbeam_conn_id: Airflow connection with key, base URL, project and location.
        gcp_conn_id: Airflow connection whose credentials ask where it is Google Cloud.
        impersonation_chain: Service account to act as, or several.
    """

    def __init__(
        self,
        *,
        model: Mapping[str, Any],
        patience: Mapping[str, Any],
        max_latency_seconds: float = 30.0,
        embeds: bool = False,
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(patience=patience)
        self.model = model
        self.max_latency_seconds = max_latency_seconds
        self.embeds = embeds
        self.llmbeam_conn_id = llmbeam_conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        chain = self.impersonation_chain
        return (
            "airflow_provider_llmbeam.triggers.ready.EndpointReadyTrigger",
            {
                "model": self.model,
                "patience": self.patience,
                "max_latency_seconds": self.max_latency_seconds,
                "embeds": self.embeds,
                "llmbeam_conn_id": self.llmbeam_conn_id,
                "gcp_conn_id": self.gcp_conn_id,
                "impersonation_chain": chain if isinstance(chain, str | None) else list(chain),
            },
        )

    def looker(self, log: Log) -> ReadyWatch:
        """Makes what asks; it has no lines of its own."""
        # Here and not above: a Dag file that defers must not load what asks.
        from airflow_provider_llmbeam.hooks.ready_watch import ready_watch

        return ready_watch(
            self.model,
            max_latency_seconds=self.max_latency_seconds,
            embeds=self.embeds,
            llmbeam_conn_id=self.llmbeam_conn_id,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
        )
