"""Waits for room without a worker slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.hooks.progress_log import Log
from airflow_provider_llmbeam.triggers.patient import PatientTrigger

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.quota_watch import QuotaWatch


class QuotaTrigger(PatientTrigger):
    """Looks at quotas until a job has room, and fires one event: `PatientEnd.to_event`.

    Args:
        question: A `spec.QuotaQuestion` as plain data, without a key: that is read from the connection.
        patience: `Patience.to_dict`.
        llmbeam_conn_id: Airflow connection with key, base URL, project and location.
        gcp_conn_id: Airflow connection whose credentials read metrics and quotas, and ask Google Cloud's models.
        impersonation_chain: Service account to act as, or several.
    """

    def __init__(
        self,
        *,
        question: Mapping[str, Any],
        patience: Mapping[str, Any],
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(patience=patience)
        self.question = question
        self.llmbeam_conn_id = llmbeam_conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        chain = self.impersonation_chain
        return (
            "airflow_provider_llmbeam.triggers.quota.QuotaTrigger",
            {
                "question": dict(self.question),
                "patience": self.patience,
                "llmbeam_conn_id": self.llmbeam_conn_id,
                "gcp_conn_id": self.gcp_conn_id,
                "impersonation_chain": chain if isinstance(chain, str | None) else list(chain),
            },
        )

    def looker(self, log: Log) -> QuotaWatch:
        """Makes what looks; it says in `log` what it sees of locations that it does not take."""
        # Here and not above: a Dag file that defers must not load Google's clients.
        from airflow_provider_llmbeam.hooks.quota_watch import quota_watch

        return quota_watch(
            self.question,
            llmbeam_conn_id=self.llmbeam_conn_id,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
            log=log,
        )
