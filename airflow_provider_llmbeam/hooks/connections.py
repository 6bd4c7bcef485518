"""Airflow connections of a task that sends requests to a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class Connections(TypedDict):
    """Connection arguments of operators, sensors and triggers.

    Attributes:
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to act as, or several, each acting as the next.
    """

    llmbeam_conn_id: str
    gcp_conn_id: str
    impersonation_chain: str | Sequence[str] | None
