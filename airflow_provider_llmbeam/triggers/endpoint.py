"""Provisions an endpoint without a worker slot."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.endpoints.monitor import EndpointMonitor
from airflow_provider_llmbeam.endpoints.platform import EndpointPlan, platform_factory
from airflow_provider_llmbeam.endpoints.provisioning import Provisioner, ProvisioningHistory
from airflow_provider_llmbeam.hooks.connections import plain_chain
from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.spec.endpoint import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import TRY_LABEL
from airflow_provider_llmbeam.triggers.base import PollingTrigger

#: Time limit for the removal in `on_kill`, in seconds; Airflow allows 30 s (`[triggerer] on_kill_timeout`).
KILL_SECONDS = 18.0


class EndpointTrigger(PollingTrigger[EndpointMonitor]):
    """Provisions an endpoint until it answers, and fires one event: `ProvisioningResult.to_event`.

    Args:
        endpoint: A `spec.endpoint` as plain data, with its project.
        key: Identity of the endpoint, see `spec.identity.identity`.
        labels: Labels of every resource that is created.
        history: `ProvisioningHistory.to_dict` after the last poll of the worker.
        gcp_conn_id: Airflow connection.
        impersonation_chain: Service account to impersonate, or a chain of them.
        poll_interval_seconds: Interval between polls, in seconds.
        ready_within_seconds: Longest time from the first poll to the first answer, in seconds.
    """

    #: In the states after `deferred`, another triggerer may have reported the endpoint as ready, so that the work
    #: uses it. A task that was cleared takes the endpoint over; what a task marked as successful leaves, its
    #: teardown removes.
    awaited_states = frozenset({"deferred", "scheduled", "queued", "running", "success"})

    def __init__(
        self,
        *,
        endpoint: Mapping[str, Any],
        key: str,
        labels: Mapping[str, str],
        history: Mapping[str, Any],
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        poll_interval_seconds: float = 15.0,
        ready_within_seconds: float = 3_600.0,
    ) -> None:
        super().__init__()
        self.endpoint = dict(endpoint)
        self.key = key
        self.labels = dict(labels)
        self.history = dict(history)
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = plain_chain(impersonation_chain)
        self.poll_interval_seconds = poll_interval_seconds
        self.ready_within_seconds = ready_within_seconds

    async def on_kill(self) -> None:
        """Tears the endpoint down when the task is marked as failed or skipped; see `awaited_states`."""
        await self.end_unless_awaited(self._abandon)

    def _abandon(self) -> None:
        reason = "The task was marked while deferred."
        self.poller.abandon(reason, within_seconds=KILL_SECONDS)

    def make_poller(self, log: TaskLog) -> EndpointMonitor:
        """Returns a new monitor that provisions the endpoint and writes to `log`."""
        spec = parse_endpoint(self.endpoint)
        return EndpointMonitor(
            platform_factory(spec.type, spec.project, self.gcp_conn_id, self.impersonation_chain),
            EndpointPlan(spec, self.key, self.labels),
            provisioner=Provisioner(
                spec.locations,
                poll_interval_seconds=self.poll_interval_seconds,
                ready_within_seconds=self.ready_within_seconds,
                attempt=self.labels[TRY_LABEL],
                history=ProvisioningHistory.from_dict(self.history).in_new_process(time.time()),
            ),
            log=log,
        )
