"""`StreamInferenceOperator`: answers the messages of a queue as they come."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.in_process import InProcessOperator
from airflow_provider_llmbeam.operators.literal import plain
from airflow_provider_llmbeam.spec.job import StreamJob

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_provider_llmbeam.spec.sink import Sink
    from airflow_provider_llmbeam.spec.stream import StreamOptions

#: Time of work after which earlier failures of a worker count no more, in seconds.
_SOUND_SECONDS = 600.0
#: Time before a restart, in seconds; twice as long after each further failure.
_FIRST_DELAY_SECONDS = 1.0


class StreamInferenceOperator(InProcessOperator):
    """Runs a resident worker, which answers the messages of Kafka topics within seconds, each once.

    The worker is `llmbeam stream`, a member of the consumer group of the job, in a process of this Airflow worker:
    answers and positions are committed in one transaction. Several tasks, processes and pods of one job share its
    partitions. A worker that fails is started again, and goes on where it was; what is paid is asked no more. A
    task that is killed drains first: what takes longer than the four seconds that Airflow leaves is asked again by
    the next worker. In a Dag with `schedule="@continuous"`, each run takes over from the last one.

    Args:
        sinks: Further sinks of the same answers, of types `kafka`, `milvus` and `postgres`.
        stream: Latency, limits and topics of the worker, see `spec.StreamOptions`.
        run_for: Time after which it drains and the task succeeds. `None`: it runs until the task is killed.
        drain: Whether it also ends as soon as no message is left.
        http: Address of `/healthz`, `/readyz` and `/metrics`, e.g. `127.0.0.1:8080`. `None`: none.
        max_restarts: Number of failures in succession after which the task fails; ten minutes of work end a
            succession.
        kwargs: Arguments of `RunInferenceOperator`. `runner` and `deferrable` have no effect; of
            `alerts`, a stream has `failed_row_ratio`, `latency_p95_ms`, `lag` and `cost_usd_per_hour`.

    Templated:
        The fields of `RunInferenceOperator`, `sinks` and `stream`.

    XCom:
        The counts of the last worker: messages, requests, answers, tokens, cost and latency; `task_restarts`.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid, or a topic is missing; raised by `execute`.
        JobError: The worker failed more often than `max_restarts` in succession.
    """

    template_fields: Sequence[str] = (*InProcessOperator.template_fields, "sinks", "stream")
    template_fields_renderers = {  # noqa: RUF012
        **InProcessOperator.template_fields_renderers,
        **dict.fromkeys(("sinks", "stream"), "json"),
    }

    _writes = True
    _rules = StreamJob

    def __init__(
        self,
        *,
        sinks: Sequence[Sink | Mapping[str, Any]] | XComArg = (),
        stream: StreamOptions | Mapping[str, Any] | XComArg | None = None,
        run_for: timedelta | None = None,
        drain: bool = False,
        http: str | None = None,
        max_restarts: int = 5,
        **kwargs: Any,
    ) -> None:
        self.sinks = [*map(plain, sinks)] if isinstance(sinks, Sequence) else sinks
        self.stream = plain(stream)
        super().__init__(**kwargs)
        self.run_for = run_for
        self.drain = drain
        self.http = http
        self.max_restarts = max_restarts
        self._is_killed = False
        if run_for is not None and run_for <= timedelta(0):
            raise JobSpecError(f"Task {self.task_id!r}: `run_for` must be more than 0; got {run_for}.")

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs workers one after the other until the time is over or nothing is left."""
        with errors_of_airflow(self):
            job = self._job(context)
            begun_at, failures, restarts = time.monotonic(), 0, 0
            while True:
                started_at = time.monotonic()
                try:
                    found = self._run_step(
                        "stream",
                        self._rest(started_at - begun_at),
                        job,
                        context,
                        on_alert=partial(self._notify, context),
                        on_page=partial(self._renew_page, context),
                    )
                except JobFailedError as error:
                    now = time.monotonic()
                    failures = 1 if now - started_at > _SOUND_SECONDS else failures + 1
                    if self._is_killed or failures > self.max_restarts:
                        raise
                    restarts += 1
                    delay = _FIRST_DELAY_SECONDS * 2 ** (failures - 1)
                    self.log.warning(
                        "The worker failed, %s of at most %s times in succession; it starts again in %.0f s, and "
                        "nothing that is paid is asked again: %s",
                        failures,
                        self.max_restarts,
                        delay,
                        error,
                    )
                    time.sleep(delay)
                else:
                    return {**found, "task_restarts": restarts}

    def on_kill(self) -> None:
        """Has the worker drain and end."""
        self._is_killed = True
        super().on_kill()

    def _renew_page(self, context: Context, page: dict[str, Any]) -> None:
        try:
            self._show_page(page, context)
        except Exception as error:  # noqa: BLE001 - of Airflow's API; the messages go on
            self.log.warning("The page of the stream could not be stored: %s", error)

    def _rest(self, passed_seconds: float) -> Any:
        """Returns what is left to do for a worker, at least a second: it has to see that nothing is left."""
        from airflow_provider_llmbeam.spec.stream import StreamRun

        rest = None if self.run_for is None else max(1.0, self.run_for.total_seconds() - passed_seconds)
        return StreamRun.parse({"run_for_seconds": rest, "drain": self.drain, "http": self.http})

    def _spec_data(self, name: str, inference: Any) -> dict[str, Any]:
        given = {"sinks": self.sinks, "stream": self.stream}
        return super()._spec_data(name, inference) | {
            field: value for field, value in given.items() if value is not None
        }
