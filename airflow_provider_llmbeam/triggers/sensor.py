"""The triggers of the sensors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any, ClassVar

from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.polling.schedule import PollSchedule, ScheduledPoller
from airflow_provider_llmbeam.triggers.base import PollingTrigger

#: Random part of the first wait: prevents sensors that were deferred at once from polling at once.
_JITTER_RATIO = 0.1


class SensorTrigger(PollingTrigger[ScheduledPoller]):
    """Polls until the condition is met or the timeout passes, and fires one event: `SensorResult.to_event`.

    Each sensor has a subclass that names its condition.

    Args:
        arguments: Arguments of the condition as plain data.
        schedule: `PollSchedule.to_dict`.
    """

    #: Class of the condition, as `module:class`: a Dag file that defers loads neither it nor its clients.
    condition: ClassVar[str]

    def __init__(self, *, arguments: Mapping[str, Any], schedule: Mapping[str, Any]) -> None:
        self.arguments = dict(arguments)
        self.schedule = dict(schedule)
        parsed = PollSchedule.from_dict(self.schedule)
        seconds = parsed.wait_seconds(parsed.polls, time.time())
        super().__init__(seconds, _JITTER_RATIO * seconds)

    def make_poller(self, log: TaskLog) -> ScheduledPoller:
        """Returns a new poller with the schedule of the sensor."""
        return self.poll_condition(self.arguments, PollSchedule.from_dict(self.schedule), log)

    @classmethod
    def poll_condition(cls, arguments: Mapping[str, Any], schedule: PollSchedule, log: TaskLog) -> ScheduledPoller:
        """Returns a poller of the condition, for the worker and the triggerer."""
        return ScheduledPoller(resolve_name(cls.condition)(**arguments), schedule, log=log)


class QuotaTrigger(SensorTrigger):
    """Polls quotas until they suffice for a job."""

    condition = "airflow_provider_llmbeam.quota.condition:QuotaCondition"


class EndpointReadyTrigger(SensorTrigger):
    """Sends requests to a model until it answers in time."""

    condition = "airflow_provider_llmbeam.endpoints.readiness:ReadinessCondition"
