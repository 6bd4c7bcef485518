"""`EstimateInferenceOperator`: what a job will take, before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.google_cloud.credentials import google_credentials
from airflow_provider_llmbeam.operators.base import InferenceJobOperator
from airflow_provider_llmbeam.tasks.errors import errors_of_airflow
from airflow_provider_llmbeam.tasks.identity import job_name
from airflow_provider_llmbeam.tasks.process import JobProcess

if TYPE_CHECKING:
    from airflow.sdk import Context


class EstimateInferenceOperator(InferenceJobOperator):
    """Says what a `RunInferenceOperator` with the same arguments will take: rows, tokens, cost, time.

    It reads the source, or evenly spread portions of a large one, renders the prompts, and asks the model a few of
    them, spread over all lengths. Their answers go into the journal of the job, which does not ask them again. It
    runs in a process on the worker, whatever the `runner`. All that it writes beside them is `estimate.json`, and
    the report of the job then says how good it was.

    Args:
        job_task_id: The task whose job is estimated, of the same Dag. Left out, with no `job_name` either, the
            answers are of this task's own job, and nobody keeps them.
        sample_size: Number of prompts sent to the model. With 0 none is sent, and the estimate assumes the longest
            output that `generation` allows.
        kwargs: The arguments of `RunInferenceOperator`. `deferrable` has no effect: the estimate never defers.

    Templated:
        As `RunInferenceOperator`, and `job_task_id`.

    XCom:
        The estimate, see `pipeline.estimate.Estimate`; under the key `demand` what `QuotaHealthSensor(demand=…)`
        takes: `estimate.output["demand"]`.

    Raises:
        JobSpecError: When the Dag is parsed, for what is wrong and literal.
        AirflowFailException: In `execute`, for what is wrong once rendered, or where there is nothing to read.
        NothingAnsweredError: The model answered none of the prompts.
    """

    template_fields: Sequence[str] = (*InferenceJobOperator.template_fields, "job_task_id")

    def __init__(self, *, job_task_id: str | None = None, sample_size: int = 32, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job_task_id = job_task_id
        self.sample_size = sample_size
        if sample_size < 0:
            raise JobSpecError(f"Task {self.task_id!r}: `sample_size` must be 0 or more; got {sample_size!r}.")

    def execute(self, context: Context) -> dict[str, Any]:
        """Makes the estimate."""
        if self.impersonation_chain:
            self.log.warning(
                "The estimate reads and asks as the account of `gcp_conn_id` %r: `impersonation_chain` counts on "
                "Dataflow alone.",
                self.gcp_conn_id,
            )
        with errors_of_airflow():
            spec, environment = self._job(context)
            self._process = JobProcess(spec, environment, self.log)
            with google_credentials(spec, self.gcp_conn_id):
                found = self._process.estimate(self.sample_size)
        context["ti"].xcom_push(key="demand", value=found["demand"])
        return found

    def _own_job_name(self, ti: Any) -> str:
        return job_name(ti, self.job_task_id)
