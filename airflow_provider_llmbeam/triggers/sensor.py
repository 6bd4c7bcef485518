"""The trigger of a sensor."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.hooks.connections import HasConnections, plain_chain
from airflow_provider_llmbeam.polling.poller import Poller, PollResult, TaskLog
from airflow_provider_llmbeam.polling.schedule import PollSchedule, ScheduledPoller
from airflow_provider_llmbeam.triggers.base import PollingTrigger

#: Random part of the first wait: prevents sensors that were deferred at once from polling at once.
_JITTER_RATIO = 0.1


class SensorTrigger(HasConnections, PollingTrigger[ScheduledPoller]):
    """Polls until the condition is met or the timeout passes, and fires one event: `SensorResult.to_event`.

    Each sensor has a subclass that makes the poller in `make_condition_poller`.

    Args:
        schedule: `PollSchedule.to_dict`.
        llmbeam_conn_id: Airflow connection with key, base URL, project and location.
        gcp_conn_id: Airflow connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
    """

    def __init__(
        self,
        *,
        schedule: Mapping[str, Any],
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        self.schedule = dict(schedule)
        self.llmbeam_conn_id = llmbeam_conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = plain_chain(impersonation_chain)
        parsed = PollSchedule.from_dict(self.schedule)
        seconds = parsed.wait_seconds(parsed.polls, time.time())
        super().__init__(seconds, _JITTER_RATIO * seconds)

    @abstractmethod
    def make_condition_poller(self, log: TaskLog) -> Poller[PollResult]:
        """Returns a new poller that checks the condition once per poll, and writes to `log`."""

    def make_poller(self, log: TaskLog) -> ScheduledPoller:
        """Returns a new poller with the schedule of the sensor."""
        return ScheduledPoller(self.make_condition_poller(log), PollSchedule.from_dict(self.schedule), log=log)
