"""Looks for a sensor, without a worker slot."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.dataflow.state_machine import FIRST_LOOK_SECONDS
from airflow_provider_llmbeam.hooks.connections import Connections
from airflow_provider_llmbeam.polling.poller import Poller, PollResult
from airflow_provider_llmbeam.polling.schedule import PollSchedule, ScheduledPoller
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.triggers.base import PollingTrigger

#: Of the first wait: sensors that were deferred at once do not look at once.
_JITTER_RATIO = 0.1


class SensorTrigger(PollingTrigger[ScheduledPoller]):
    """Looks until it is so, or patience is at its end, and fires one event: `SensorResult.to_event`.

    A class of its own for each sensor says in `looker` what looks, and serialises `common` with its arguments.

    Args:
        patience: `PollSchedule.to_dict`.
        llmbeam_conn_id: Airflow connection with key, base URL, project and location.
        gcp_conn_id: Airflow connection whose credentials ask where it is Google Cloud.
        impersonation_chain: Service account to act as, or several.
    """

    def __init__(
        self,
        *,
        patience: Mapping[str, Any],
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        self.patience = dict(patience)
        self.llmbeam_conn_id = llmbeam_conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = (
            impersonation_chain if isinstance(impersonation_chain, str | None) else list(impersonation_chain)
        )
        known, now = PollSchedule.from_dict(self.patience), time.time()
        first = known.wait_seconds(known.looks, now)
        super().__init__(max(FIRST_LOOK_SECONDS, first), _JITTER_RATIO * first)

    @property
    def connections(self) -> Connections:
        """Those that whoever looks reads."""
        return Connections(
            llmbeam_conn_id=self.llmbeam_conn_id,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
        )

    @property
    def common(self) -> dict[str, Any]:
        """The arguments of this class, as plain JSON."""
        return {"patience": self.patience, **self.connections}

    @abstractmethod
    def looker(self, log: TaskLog) -> Poller[PollResult]:
        """Makes what looks."""

    def watch(self, log: TaskLog) -> ScheduledPoller:
        """Makes what looks as long as patience has it; its lines go to `log`."""
        return ScheduledPoller(self.looker(log), PollSchedule.from_dict(self.patience), log=log)
