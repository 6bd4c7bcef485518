"""Airflow connections of a task that sends requests to a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class Connections(TypedDict):
    """Connection arguments of operators, sensors and triggers.

    Attributes:
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
    """

    llmbeam_conn_id: str
    gcp_conn_id: str
    impersonation_chain: str | Sequence[str] | None


class HasConnections:
    """Base of the sensors and triggers that take these arguments, and keep them as attributes."""

    llmbeam_conn_id: str
    gcp_conn_id: str
    impersonation_chain: str | Sequence[str] | None

    @property
    def connections(self) -> Connections:
        """Airflow connections that the poller reads."""
        return Connections(
            llmbeam_conn_id=self.llmbeam_conn_id,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
        )


def plain_chain(chain: str | Sequence[str] | None) -> str | list[str] | None:
    """Returns the argument `impersonation_chain` as plain JSON."""
    return chain if isinstance(chain, str | None) else list(chain)
