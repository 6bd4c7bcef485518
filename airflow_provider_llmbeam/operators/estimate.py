"""`EstimateInferenceOperator`: estimates a job before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowSkipException

from airflow_provider_llmbeam.exceptions import JobSpecError, SourceEmptyError
from airflow_provider_llmbeam.operators.assets import add_manifest
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.identity import job_name, refuse_unknown_task
from airflow_provider_llmbeam.operators.in_process import InProcessOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_llmbeam.spec.job import JobSpec


class EstimateInferenceOperator(InProcessOperator):
    """Estimates rows, tokens, cost and time of a `RunInferenceOperator` with the same arguments.

    It reads the source, or evenly spread portions of a large one, renders the prompts, and sends a few of them,
    spread over all lengths, to the model. The answers go into the journal of the job, which does not request them
    again. It runs in a process on the worker, regardless of the `runner`. Its only other output is
    `estimate.json`; the report of the job then contains the accuracy of the estimate.

    Args:
        job_task_id: Id of the task of the same Dag whose job is estimated, with its task groups. Without it and
            `job_name`, the answers belong to this task's own job, and no other job reuses them.
        sample_size: Number of prompts sent to the model. With 0 none is sent, and the estimate assumes the longest
            output that `generation` allows.
        kwargs: Arguments of `RunInferenceOperator`. `deferrable` has no effect: the estimate never defers.

    Templated:
        The fields of `RunInferenceOperator`, and `job_task_id`.

    XCom:
        The estimate, see `pipeline.measure.estimate`; under the key `demand` the argument of
        `QuotaHealthSensor(demand=…)`: `estimate.output["demand"]`. The estimate is also the `extra` of the events
        of the assets in `outlets`.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid, the Dag has no task `job_task_id`, or there is
            nothing to read; raised by `execute`.
        AirflowSkipException: The source has no rows, and `source.on_empty` is 'skip'.
        NothingAnsweredError: The model answered none of the prompts.
    """

    template_fields: Sequence[str] = (*InProcessOperator.template_fields, "job_task_id")

    def __init__(self, *, job_task_id: str | None = None, sample_size: int = 32, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job_task_id = job_task_id
        self.sample_size = sample_size
        if sample_size < 0:
            raise JobSpecError(f"Task {self.task_id!r}: `sample_size` must be 0 or more; got {sample_size!r}.")

    def execute(self, context: Context) -> dict[str, Any]:
        """Estimates the job."""
        with errors_of_airflow():
            if self.job_task_id is not None:  # of any other task, the job would send the sample again
                refuse_unknown_task("job_task_id", self.job_task_id, self.get_dag())
            spec, environment = self._job(context)
            found = self._estimate(spec, environment, context)
        context["ti"].xcom_push(key="demand", value=found["demand"])
        add_manifest(context, self.outlets, found)
        return found

    def _estimate(self, spec: JobSpec, environment: dict[str, str], context: Context) -> dict[str, Any]:
        from airflow_provider_llmbeam.spec.protocol.steps import EstimateSample

        try:
            sample = EstimateSample(sample_size=self.sample_size)
            return self._run_step("estimate", sample, (spec, environment), context)
        except SourceEmptyError as error:
            if spec.source.on_empty != "skip":
                raise
            raise AirflowSkipException(str(error)) from None

    def _own_job_name(self, ti: Any) -> str:
        return job_name(ti, self.job_task_id)
