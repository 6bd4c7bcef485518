"""Brings up an endpoint without a worker slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asgiref.sync import sync_to_async

from airflow_provider_llmbeam.dataflow.state_machine import FIRST_LOOK_SECONDS
from airflow_provider_llmbeam.endpoints.monitor import EndpointMonitor
from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.endpoints.platforms import platform_factory
from airflow_provider_llmbeam.endpoints.provisioning import Provisioner, ProvisioningHistory
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.spec.endpoint import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import TRY_LABEL
from airflow_provider_llmbeam.triggers.base import PollingTrigger

#: Of the 30 s that Airflow gives `on_kill` (`[triggerer] on_kill_timeout`).
KILL_SECONDS = 18.0


class EndpointTrigger(PollingTrigger[EndpointMonitor]):
    """Does what an endpoint needs until it answers, and fires one event: `ProvisioningResult.to_event`.

    Args:
        endpoint: See `spec.endpoint`, as plain data with its project.
        key: See `spec.identity.identity`.
        labels: Of everything that is made.
        memory: `ProvisioningHistory.to_dict` of the looks before.
        gcp_conn_id: Airflow connection.
        impersonation_chain: Service account to act as, or several.
        poll_interval_seconds: Between two looks.
        ready_within_seconds: From the first look to the first answer.
    """

    def __init__(
        self,
        *,
        endpoint: Mapping[str, Any],
        key: str,
        labels: Mapping[str, str],
        memory: Mapping[str, Any],
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        poll_interval_seconds: float = 15.0,
        ready_within_seconds: float = 3_600.0,
    ) -> None:
        super().__init__(FIRST_LOOK_SECONDS)
        self.endpoint = dict(endpoint)
        self.key = key
        self.labels = dict(labels)
        self.memory = dict(memory)
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.poll_interval_seconds = poll_interval_seconds
        self.ready_within_seconds = ready_within_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        chain = self.impersonation_chain
        return (
            "airflow_provider_llmbeam.triggers.endpoint.EndpointTrigger",
            {
                "endpoint": self.endpoint,
                "key": self.key,
                "labels": self.labels,
                "memory": self.memory,
                "gcp_conn_id": self.gcp_conn_id,
                "impersonation_chain": chain if isinstance(chain, str | None) else list(chain),
                "poll_interval_seconds": self.poll_interval_seconds,
                "ready_within_seconds": self.ready_within_seconds,
            },
        )

    async def on_kill(self) -> None:
        """Removes the endpoint: somebody marked or cleared the task."""
        watch = self.watched
        abandon = sync_to_async(watch.abandon, thread_sensitive=False)
        await abandon("The task was marked or cleared while deferred.", within_seconds=KILL_SECONDS)

    def watch(self, log: TaskLog) -> EndpointMonitor:
        """Makes what brings up the endpoint; its lines go to `log`."""
        spec = parse_endpoint(self.endpoint)
        return EndpointMonitor(
            platform_factory(spec.type, spec.project, self.gcp_conn_id, self.impersonation_chain),
            EndpointPlan(spec, self.key, self.labels),
            provisioner=Provisioner(
                spec.locations,
                poll_interval_seconds=self.poll_interval_seconds,
                ready_within_seconds=self.ready_within_seconds,
                attempt=self.labels[TRY_LABEL],
                memory=ProvisioningHistory.from_dict(self.memory),
            ),
            log=log,
        )
