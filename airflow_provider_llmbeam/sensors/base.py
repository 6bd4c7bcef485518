"""The base of the sensors: one poll in the worker, the others in the triggerer, until a timeout."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
)

from airflow_provider_llmbeam.hooks.connections import plain_chain
from airflow_provider_llmbeam.operators.arguments import check_arguments
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.written import WrittenInDag
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import PollSchedule, ScheduledPoller, SensorResult
from airflow_provider_llmbeam.triggers.airflow_compat import TaskDeferralError, TaskDeferralTimeout
from airflow_provider_llmbeam.triggers.sensor import SensorTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

#: Time after `timeout` for the last poll of the trigger. After that Airflow fails a task whose triggerer has not
#: reported.
GRACE_SECONDS = 300.0


class PollingSensor(WrittenInDag, BaseSensorOperator):
    """Polls once in the worker, and then waits without a worker slot.

    Each sensor has a `SensorTrigger` of its own, which names the condition, and returns its XCom from `conclude`.
    With `deferrable=False` it behaves like Airflow's own sensors, with their `mode`.

    `soft_fail` skips the task if the condition is not met within `timeout`. A refusal that waiting will not
    resolve fails the task at once and is not retried; only `never_fail` turns it into a skip.

    Args:
        llmbeam_conn_id: Connection with API key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
        deferrable: Whether the task releases its worker slot while it waits; `mode` then has no effect.
    """

    #: Sentence for error messages: what keeps running, and may be billed, after this task has failed.
    left_running: ClassVar[str] = ""
    trigger_class: ClassVar[type[SensorTrigger]]
    #: Model of the condition, as plain data, if it has one.
    model: Any = None

    def __init__(
        self,
        *,
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        check_arguments(type(self), kwargs)
        super().__init__(**kwargs)
        self.llmbeam_conn_id = llmbeam_conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.deferrable = deferrable
        self._poller: ScheduledPoller | None = None
        self._last_message = ""

    @abstractmethod
    def condition_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the condition as plain data, without those of the connections."""

    @abstractmethod
    def conclude(self, result: SensorResult, context: Context) -> Any:
        """Returns the XCom, made of `result.value` after the condition was met."""

    def trigger(self, schedule: PollSchedule) -> SensorTrigger:
        """Returns the trigger that continues in the triggerer."""
        return self.trigger_class(arguments=self._arguments(), schedule=schedule.to_dict())

    def execute(self, context: Context) -> Any:
        """Waits until the condition is met."""
        with errors_of_airflow():
            if not self.deferrable:
                return self._conclude(self._poke_until_result(context), context)
            schedule = self._schedule(time.time(), self.timeout)
            poller = self._make_poller(schedule)
            result = poller.poll()
            if isinstance(result, Wait):
                self.defer(
                    trigger=self.trigger(replace(schedule, polls=poller.polls)),
                    method_name="execute_complete",
                    timeout=self._max_deferral(),
                )
            return self._conclude(result, context)

    def poke(self, context: Context) -> PokeReturnValue:
        """Polls once; the XCom value that it returns is the `SensorResult` for `execute`."""
        if self._poller is None:
            first = context["ti"].get_first_reschedule_date(context)
            schedule = self._schedule(time.time() if first is None else first.timestamp(), None)
            schedule = replace(schedule, polls=int(context.get("task_reschedule_count") or 0))
            self._poller = self._make_poller(schedule)
        result = self._poller.poll()
        if isinstance(result, Wait):
            self._last_message = result.message or ""
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=result)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Resumes after the event of the trigger; Airflow calls it."""
        with errors_of_airflow():
            return self._conclude(SensorResult.from_event(event), context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Handles a deferral that ended without an event of the trigger.

        Replaces the method of Airflow's sensors, which turns every error into a skip if `soft_fail` is set.
        """
        try:
            return super(BaseSensorOperator, self).resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            self._time_out(
                f"The triggerer reported nothing within {self._max_deferral().total_seconds():g} s "
                f"(`execution_timeout`, or `timeout` plus {GRACE_SECONDS:g} s). The log of this task shows the "
                "last poll; if it shows none, check that a triggerer is running."
            )
        except TaskDeferralError as error:
            if self.never_fail:
                raise AirflowSkipException(f"Skipped because `never_fail=True`: {error}") from error
            raise

    def _make_poller(self, schedule: PollSchedule) -> ScheduledPoller:
        return self.trigger_class.poll_condition(self._arguments(), schedule, self.log)

    def _arguments(self) -> dict[str, Any]:
        arguments = self.condition_arguments()
        self._check_model(self.model)
        return {
            **arguments,
            "llmbeam_conn_id": self.llmbeam_conn_id,
            "gcp_conn_id": self.gcp_conn_id,
            "impersonation_chain": plain_chain(self.impersonation_chain),
        }

    def _poke_until_result(self, context: Context) -> SensorResult:
        self._poller = None
        try:
            result: SensorResult = super().execute(context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            # Airflow's message does not say which condition was not met.
            self._time_out(f"{error} {self._last_message}")
        return result

    def _conclude(self, result: SensorResult, context: Context) -> Any:
        if result.outcome == "timed_out":
            self._time_out(result.message)
        if result.error is not None:
            message = self._with_left_running(result.message)
            if self.never_fail:
                raise AirflowSkipException(f"Skipped because `never_fail=True`: {message}")
            raise AirflowFailException(message) from result.error
        return self.conclude(result, context)

    def _time_out(self, message: str) -> NoReturn:
        message = self._with_left_running(message)
        if self.soft_fail or self.never_fail:
            argument = "soft_fail" if self.soft_fail else "never_fail"
            raise AirflowSkipException(f"Skipped because `{argument}=True`: {message}")
        raise AirflowSensorTimeout(message)

    def _with_left_running(self, message: str) -> str:
        return f"{message.strip()} {self.left_running}".strip()

    def _max_deferral(self) -> timedelta:
        """Longest time that the task is deferred, for Airflow counts `execution_timeout` only in a worker slot."""
        own = timedelta(seconds=self.timeout + GRACE_SECONDS)
        return own if self.execution_timeout is None else min(own, self.execution_timeout)

    def _schedule(self, started_at: float, timeout_seconds: float | None) -> PollSchedule:
        return PollSchedule(
            started_at=started_at,
            timeout_seconds=timeout_seconds,
            poll_interval_seconds=self.poke_interval,
            is_exponential=self.exponential_backoff,
            max_wait_seconds=None if self.max_wait is None else self.max_wait.total_seconds(),
        )
