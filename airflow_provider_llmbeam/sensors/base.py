"""What sensors have in common: one look in the worker, the others in the triggerer, and an end to patience."""

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

from airflow_provider_llmbeam.airflow_compat import TaskDeferralError, TaskDeferralTimeout
from airflow_provider_llmbeam.hooks.connections import Connections
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import PollSchedule, ScheduledPoller, SensorResult
from airflow_provider_llmbeam.tasks.errors import errors_of_airflow
from airflow_provider_llmbeam.triggers.sensor import SensorTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

#: After `timeout`, for the last look of the trigger. Then Airflow ends a task whose triggerer does not report.
GRACE_SECONDS = 300.0


class PollingSensor(BaseSensorOperator):
    """Looks once in the worker, and then waits without a worker slot.

    A sensor has a `SensorTrigger` of its own, which knows what looks, and says in `conclude` what follows.
    With `deferrable` off it is one of Airflow's sensors, with its `mode`.

    `soft_fail` skips the task where it is not so within `timeout`. A refusal that waiting does not mend fails it
    at once in any case, and is not tried again; only `never_fail` makes it a skip.

    Args:
        llmbeam_conn_id: Connection with API key, base URL, project and location.
        gcp_conn_id: Connection whose credentials ask where it is Google Cloud.
        impersonation_chain: Service account to act as, or several, each acting as the next.
        deferrable: Whether the task leaves its worker slot while it waits; `mode` then says nothing.
    """

    #: A sentence for the messages of failure: what goes on, and is perhaps billed, whatever becomes of this task.
    left_running: ClassVar[str] = ""

    def __init__(
        self,
        *,
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.llmbeam_conn_id = llmbeam_conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.deferrable = deferrable
        self._watched: ScheduledPoller | None = None
        self._refusal = ""

    @property
    def connections(self) -> Connections:
        """Those that whoever looks reads."""
        return Connections(
            llmbeam_conn_id=self.llmbeam_conn_id,
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
        )

    @abstractmethod
    def trigger(self, patience: PollSchedule) -> SensorTrigger:
        """Makes what looks, here and in the triggerer."""

    @abstractmethod
    def conclude(self, end: SensorResult, context: Context) -> Any:
        """Says what follows from `end.event`, which the end of the watch made of itself.

        Returns:
            The XCom.
        """

    def execute(self, context: Context) -> Any:
        """Waits until it is so."""
        with errors_of_airflow():
            if not self.deferrable:
                return self._conclude(self._poked(context), context)
            patience = self._patience(time.time(), self.timeout)
            watch = self.trigger(patience).watch(self.log)
            seen = watch.look()
            if isinstance(seen, Wait):
                self.defer(
                    trigger=self.trigger(replace(patience, looks=watch.looks)),
                    method_name="execute_complete",
                    timeout=self._longest_deferral(),
                )
            return self._conclude(seen, context)

    def poke(self, context: Context) -> PokeReturnValue:
        """Looks once; what it returns for XCom is a `SensorResult`, from which `execute` concludes."""
        if self._watched is None:
            first = context["ti"].get_first_reschedule_date(context)
            patience = self._patience(time.time() if first is None else first.timestamp(), None)
            patience = replace(patience, looks=int(context.get("task_reschedule_count") or 0))
            self._watched = self.trigger(patience).watch(self.log)
        seen = self._watched.look()
        if isinstance(seen, Wait):
            self._refusal = seen.words or ""
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=seen)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Goes on when it is so, or patience is at its end; Airflow calls it."""
        with errors_of_airflow():
            return self._conclude(SensorResult.from_event(event), context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Sees to an end that the trigger did not report.

        Not that of Airflow's sensors, which makes a skip of every error where `soft_fail` is on.
        """
        try:
            return super(BaseSensorOperator, self).resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            self._time_out(
                f"The triggerer reported nothing within {self._longest_deferral().total_seconds():g} s "
                f"(`execution_timeout`, or `timeout` and {GRACE_SECONDS:g} s more). The log of this task has what "
                "was seen last; where it has nothing, look whether a triggerer runs."
            )
        except TaskDeferralError as error:
            if self.never_fail:
                raise AirflowSkipException(f"Skipped, as `never_fail` has it: {error}") from error
            raise

    def _poked(self, context: Context) -> SensorResult:
        self._watched = None
        try:
            end: SensorResult = super().execute(context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            # Airflow's words do not say what was missing.
            self._time_out(f"{error} {self._refusal}")
        return end

    def _conclude(self, end: SensorResult, context: Context) -> Any:
        if end.outcome == "timed_out":
            self._time_out(end.message)
        if end.error is not None:
            message = self._told(end.message)
            if self.never_fail:
                raise AirflowSkipException(f"Skipped, as `never_fail` has it: {message}")
            raise AirflowFailException(message) from end.error
        return self.conclude(end, context)

    def _time_out(self, message: str) -> NoReturn:
        message = self._told(message)
        if self.soft_fail or self.never_fail:
            which = "soft_fail" if self.soft_fail else "never_fail"
            raise AirflowSkipException(f"Skipped, as `{which}` has it: {message}")
        raise AirflowSensorTimeout(message)

    def _told(self, message: str) -> str:
        return f"{message.strip()} {self.left_running}".strip()

    def _longest_deferral(self) -> timedelta:
        """Airflow counts `execution_timeout` only where the task has a worker slot."""
        own = timedelta(seconds=self.timeout + GRACE_SECONDS)
        return own if self.execution_timeout is None else min(own, self.execution_timeout)

    def _patience(self, started_at: float, timeout_seconds: float | None) -> PollSchedule:
        return PollSchedule(
            started_at=started_at,
            timeout_seconds=timeout_seconds,
            poke_interval_seconds=self.poke_interval,
            is_exponential=self.exponential_backoff,
            max_wait_seconds=None if self.max_wait is None else self.max_wait.total_seconds(),
        )
