"""Triggers of a task whose job runs elsewhere: one polls the job, one only waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_llmbeam.hooks.connections import plain_chain
from airflow_provider_llmbeam.jobs.cancellation import cancel_or_leave
from airflow_provider_llmbeam.jobs.client import JobClient, SubmittedJob, connect
from airflow_provider_llmbeam.jobs.monitor import JobMonitor
from airflow_provider_llmbeam.jobs.state_machine import JobStateMachine
from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.triggers.base import PollingTrigger


class JobTrigger(PollingTrigger[JobMonitor]):
    """Polls a job on Dataflow or Flink until it has ended, and fires one event: `JobResult.to_event`.

    Args:
        job: A `SubmittedJob` as plain data.
        gcp_conn_id: Airflow connection of Google Cloud.
        impersonation_chain: Service account to impersonate on Dataflow, or a chain of them.
        poll_interval_seconds: Interval between polls, in seconds.
        budget_usd: Cost above which the job is cancelled, in US dollars.
    """

    def __init__(
        self,
        *,
        job: Mapping[str, Any],
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        poll_interval_seconds: float = 30.0,
        budget_usd: float | None = None,
    ) -> None:
        super().__init__()
        self.job = dict(job)
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = plain_chain(impersonation_chain)
        self.poll_interval_seconds = poll_interval_seconds
        self.budget_usd = budget_usd

    async def on_kill(self) -> None:
        """Cancels the job, or leaves it running, when the task is marked or cleared."""
        await self.end_unless_awaited(self._cancel_or_leave)

    def _cancel_or_leave(self) -> None:
        monitor = self.poller
        reason = "The task was marked or cleared while deferred."
        cancel_or_leave(monitor.job, monitor.client, reason=reason, log=self.log)

    def make_poller(self, log: TaskLog) -> JobMonitor:
        """Returns a new monitor of the job that writes to `log`."""
        job = SubmittedJob(**self.job)
        machine = JobStateMachine(self.poll_interval_seconds, self.budget_usd, service=job.service)
        return JobMonitor(self._connect, job, machine=machine, log=log)

    def _connect(self) -> JobClient:
        return connect(SubmittedJob(**self.job), self.gcp_conn_id, self.impersonation_chain)


class WaitTrigger(BaseTrigger):
    """Fires one event, without content, when a time has come. Another triggerer can take it over.

    Args:
        until: Unix time.
    """

    def __init__(self, *, until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class path and the arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"until": self.until}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, and yields the event."""
        await asyncio.sleep(max(0.0, self.until - time.time()))
        yield TriggerEvent({})  # type: ignore[no-untyped-call]
