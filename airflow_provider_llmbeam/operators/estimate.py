"""`EstimateInferenceOperator`: estimates a job before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException

from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobSpecError, SourceEmptyError
from airflow_provider_llmbeam.operators.assets import add_manifest
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.identity import job_name, refuse_unknown_task
from airflow_provider_llmbeam.operators.in_process import InProcessOperator
from airflow_provider_llmbeam.operators.literal import is_pending
from airflow_provider_llmbeam.spec.protocol.counts import usd

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_llmbeam.spec.job import JobSpec

Consequence = Literal["fail", "skip", "report"]


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
            output that `generation` allows. The endpoints of providers that count tokens are not asked: with 0
            nothing is sent, and otherwise the answers have the counts.
        on_exceeds_budget: What follows if the job would cost more than `limits.budget_usd`, or its guard more than
            its own: `fail` fails the task without a retry; `skip` skips it, and with it the tasks after it;
            `report` only logs it, with `exceeds_budget` in the XCom.
        kwargs: Arguments of `RunInferenceOperator`. `deferrable` has no effect: the estimate never defers.

    Templated:
        The fields of `RunInferenceOperator`, `job_task_id` and `on_exceeds_budget`.

    XCom:
        The estimate, see `pipeline.measure.estimate`; under the key `demand` the argument of
        `QuotaHealthSensor(demand=…)`: `estimate.output["demand"]`. The estimate is also the `extra` of the events
        of the assets in `outlets`.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid, the Dag has no task `job_task_id`, there is nothing
            to read, or the job is over budget; raised by `execute`.
        AirflowSkipException: The source has no rows, and `source.on_empty` is 'skip'; or the job is over budget,
            and `on_exceeds_budget` is 'skip'.
        NothingAnsweredError: The model answered none of the prompts.
    """

    template_fields: Sequence[str] = (*InProcessOperator.template_fields, "job_task_id", "on_exceeds_budget")

    def __init__(
        self,
        *,
        job_task_id: str | None = None,
        sample_size: int = 32,
        on_exceeds_budget: Consequence | str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_task_id = job_task_id
        self.sample_size = sample_size
        self.on_exceeds_budget = on_exceeds_budget
        if not is_pending(on_exceeds_budget):
            self._check_consequence()
            self._check_budget()
        if sample_size < 0:
            raise JobSpecError(f"Task {self.task_id!r}: `sample_size` must be 0 or more; got {sample_size!r}.")

    def execute(self, context: Context) -> dict[str, Any]:
        """Estimates the job."""
        with errors_of_airflow(self):
            self._check_consequence()
            if self.job_task_id is not None:  # of any other task, the job would send the sample again
                refuse_unknown_task("job_task_id", self.job_task_id, self.get_dag())
            spec, environment = self._job(context)
            found = self._estimate(spec, environment, context)
        context["ti"].xcom_push(key="demand", value=found["demand"])
        add_manifest(context, self.outlets, found)
        if found["exceeds_budget"] and self.on_exceeds_budget != "report":
            context["ti"].xcom_push(key="return_value", value=found)
            raise self._end(describe_excess(found, spec))
        return found

    def _check_consequence(self) -> None:
        if self.on_exceeds_budget not in get_args(Consequence):
            raise JobSpecError(
                f"Task {self.task_id!r}: `on_exceeds_budget` must be 'fail', 'skip' or 'report'; got "
                f"{self.on_exceeds_budget!r}."
            )

    def _check_budget(self) -> None:
        """Refuses a skip above a budget that nobody has set."""
        moderation = self.safety.get("moderation") if isinstance(self.safety, Mapping) else self.safety
        guard = moderation.get("limits") if isinstance(moderation, Mapping) else moderation
        every = [each or {} for each in (self.limits, guard)]
        if self.on_exceeds_budget != "skip" or any(
            is_pending(each) or each.get("budget_usd") or each.get("budget") for each in every
        ):
            return
        raise JobSpecError(
            f"Task {self.task_id!r}: `on_exceeds_budget` 'skip' needs a budget; without one the task is never "
            "skipped. Set `limits.budget_usd`, or leave `on_exceeds_budget` out."
        )

    def _end(self, why: str) -> Exception:
        return AirflowSkipException(why) if self.on_exceeds_budget == "skip" else AirflowFailException(why)

    def _estimate(self, spec: JobSpec, environment: dict[str, str], context: Context) -> dict[str, Any]:
        from airflow_provider_llmbeam.spec.protocol.steps import EstimateSample

        try:
            sample = EstimateSample(sample_size=self.sample_size)
            return self._run_step("estimate", sample, (spec, environment), context)
        except SourceEmptyError as error:
            if spec.source.on_empty != "skip":
                raise
            raise AirflowSkipException(str(error)) from None
        except BudgetExceededError as error:  # the sample costs more
            raise self._end(str(error)) from None

    def _own_job_name(self, ti: Any) -> str:
        return job_name(ti, self.job_task_id)


def describe_excess(estimate: Mapping[str, Any], spec: JobSpec) -> str:
    """Returns what a job would cost, and what its budget allows.

    Args:
        estimate: An estimate with `exceeds_budget`, as plain data.
        spec: Spec of the job.
    """
    guard, moderation, limits = estimate["guard"] or {}, spec.safety.moderation, spec.limits
    if moderation is not None and guard.get("exceeds_budget"):
        subject, part, cost = "The guard", guard, guard["cost_usd"]
        allowed = [f"`safety.moderation.limits.budget_usd` is {usd(moderation.limits.budget_usd or 0.0)}"]
    else:
        subject, part, cost = "The job", estimate, estimate["planned_cost_usd"]
        allowed = [] if limits.budget_usd is None else [f"`limits.budget_usd` is {usd(limits.budget_usd)}"]
        if (left := estimate["budget_left_usd"]) is not None:
            allowed.append(f"{usd(left)} of `limits.budget` are left")
    bound = "at most" if part["output_is_upper_bound"] else "about"
    return (
        f"{subject} would cost {bound} {usd(cost)}, and {' and '.join(allowed)}. The job keeps the answers of the "
        "sample. Raise the budget, take fewer rows or a cheaper way; with `on_exceeds_budget` 'report' it is only "
        "logged."
    )
