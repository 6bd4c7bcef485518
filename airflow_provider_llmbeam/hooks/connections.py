"""The Airflow connections of a task that asks a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class Connections(TypedDict):
    """Names of connections, as arguments.

    Attributes:
        llmbeam_conn_id: With key, base URL, project and location.
        gcp_conn_id: Whose credentials ask where it is Google Cloud.
        impersonation_chain: Service account to act as, or several, each acting as the next.
    """

    llmbeam_conn_id: str
    gcp_conn_id: str
    impersonation_chain: str | Sequence[str] | None
