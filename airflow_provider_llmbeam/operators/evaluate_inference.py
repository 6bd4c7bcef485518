"""`EvaluateInferenceOperator`: evaluates a job on a golden set before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
)
from airflow.providers.standard.utils.skipmixin import XCOM_SKIPMIXIN_KEY, XCOM_SKIPMIXIN_SKIPPED

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.integrations.opentelemetry import record_evaluation
from airflow_provider_llmbeam.operators.assets import add_manifest
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.experiment import check_experiment, log_experiment
from airflow_provider_llmbeam.operators.in_process import InProcessOperator
from airflow_provider_llmbeam.operators.literal import plain, unrendered
from airflow_provider_llmbeam.operators.other_models import OtherModels

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_provider_llmbeam.spec.evaluation import Metric
    from airflow_provider_llmbeam.spec.job import JobSpec
    from airflow_provider_llmbeam.spec.source import Source


class EvaluateInferenceOperator(InProcessOperator):
    """Evaluates a `RunInferenceOperator` with the same arguments on a golden set, and refuses a bad prompt.

    The rows of the golden set go through the prompt, the model and the parameters of the job, in a process on the
    worker, regardless of the `runner`; `source` is not read, and nothing is written to the sink. The answers go
    into a journal that all runs of this task share, or into the `cache`: an unchanged evaluation sends no request.
    Below `state_uri` (or the sink) it writes `evaluation.json`, `evaluation.txt` with the wrong
    answers, which the log shows as well, and `accepted.json`, the last evaluation that passed.

    Args:
        golden: The golden set: rows with the columns of the prompt and the expected values.
        metrics: Metrics by name, see `spec.evaluation.ExactMetric`, `LabelF1Metric`, `NumericMetric`,
            `ValidJsonMetric`, `JudgeMetric` and `PythonMetric`. Airflow does not render the rubric of a judge.
        minimum: Smallest accepted score by name of a metric.
        max_drop: Largest accepted difference to the last accepted evaluation of the same golden set; `None`
            compares with none.
        on_failure: What follows if a score is not accepted: `fail`, `skip`, `report` or `branch`.
        refused_task_ids: With `branch`, the direct downstream tasks that follow if a score is not accepted; the
            other ones follow if all are. Those of the other side are skipped, except teardowns, which always
            follow. A mapped task needs all of them in its mapped task group.
        max_cases: Maximum number of wrong answers that are listed.
        seed: Seed of the bootstrap intervals.
        judge_conn_id: Connection of the judges' models. `None`: that of the job for a model of the same type; for
            another one, the environment of the worker.
        experiment: Experiment of Vertex AI in which a run with parameters, scores and cost is written, 'NAME' (in
            us-central1) or 'projects/…/locations/…/metadataStores/default/contexts/NAME'; made if it is missing.
            The name of the run follows from task and Dag run. `None` writes none.
        kwargs: Arguments of `RunInferenceOperator`. `deferrable` has no effect: an evaluation never defers.

    Templated:
        The fields of `RunInferenceOperator`, and `golden`, `metrics`, `minimum`, `max_drop`, `judge_conn_id`
        and `experiment`.

    XCom:
        The manifest: `passed`, `scores` with their intervals, `faults`, costs, and the addresses of the report and
        the text. It is also the `extra` of the events of the assets in `outlets`. With `experiment`, the
        `experiment_run`.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid, or the golden set does not fit; or a score is not
            accepted.
        AirflowSkipException: A score is not accepted, and `on_failure` is 'skip'.
        JobFailedError: The server left rows unanswered; a retry sends only those.
    """

    _input = "Evaluation"
    _own = ("golden", "metrics", "minimum", "max_drop", "on_failure", "max_cases", "seed")
    #: Airflow's name: a skipped task is skipped again when it alone is cleared.
    inherits_from_skipmixin = True
    template_fields: Sequence[str] = (
        *InProcessOperator.template_fields,
        "golden",
        "metrics",
        "minimum",
        "max_drop",
        "judge_conn_id",
        "experiment",
    )

    def __init__(
        self,
        *,
        golden: Source | Mapping[str, Any] | XComArg,
        metrics: Mapping[str, Metric | Mapping[str, Any] | str | XComArg],
        minimum: Mapping[str, Any] | XComArg | None = None,
        max_drop: float | str | XComArg | None = None,
        on_failure: Literal["fail", "skip", "report", "branch"] = "fail",
        refused_task_ids: Sequence[str] = (),
        max_cases: int = 20,
        seed: int = 0,
        judge_conn_id: str | None = None,
        experiment: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.golden = plain(golden)
        own = metrics if isinstance(metrics, Mapping) else {}
        self.metrics = {name: unrendered(plain(metric), "rubric") for name, metric in own.items()} or metrics
        self.minimum = minimum
        self.max_drop = max_drop
        self.on_failure = on_failure
        self.refused_task_ids = tuple(refused_task_ids)
        self.max_cases = max_cases
        self.seed = seed
        self.judge_conn_id = judge_conn_id
        self.experiment = experiment
        check_experiment(experiment)
        if (on_failure == "branch") != bool(self.refused_task_ids):
            raise JobSpecError(
                f"Task {self.task_id!r}: `refused_task_ids` and `on_failure` 'branch' are needed together; got "
                f"{list(self.refused_task_ids)} and {on_failure!r}."
            )
        self._refuse_problems(*(f"metrics.{name}.rubric" for name in own))

    def resolve_job(self, context: Context) -> tuple[JobSpec, dict[str, str], Any]:
        """Returns the job with the golden set as its source, its secrets, and the evaluation."""
        spec, environment = self._job(context)
        models = OtherModels(self.model, self.llmbeam_conn_id, environment)
        data = self._input_data()
        for name, metric in data["metrics"].items():
            if isinstance(metric, Mapping) and metric.get("type") == "judge":
                model = models.complete_model(metric.get("model"), self.judge_conn_id)
                data["metrics"][name] = {**metric, "model": model}
        evaluation = self._parse_input(data)
        return spec.model_copy(update={"source": evaluation.golden}), environment, evaluation

    def execute(self, context: Context) -> dict[str, Any]:
        """Evaluates the job."""
        with errors_of_airflow(self):
            spec, environment, evaluation = self.resolve_job(context)
            if self._facts is not None:
                self._facts = replace(self._facts, spec=spec)
            job, others = (spec, environment), evaluation.models
            found = self._run_step("evaluate", evaluation, job, context, others=others)
            if self.experiment is not None:
                run = log_experiment(self.experiment, spec, found, context, self.gcp_conn_id)
                found["experiment_run"] = run
        record_evaluation(found, found.pop("traced_rows", []), spec.server.origin, context["ti"])
        add_manifest(context, self.outlets, found)
        if self.on_failure == "branch":
            self._skip_other_side(found, context)
        if found["passed"]:
            return found
        message = f"{' '.join(found['faults'])} The wrong answers are in {found['text_uri']!r}."
        if self.on_failure == "report":
            self.log.warning("The evaluation did not pass: %s", message)
            return found
        context["ti"].xcom_push(key="return_value", value=found)
        raise (AirflowSkipException if self.on_failure == "skip" else AirflowFailException)(message)

    def _skip_other_side(self, found: dict[str, Any], context: Context) -> None:
        """Skips the direct downstream tasks of the side that does not follow; Airflow ends this task there."""
        if unknown := set(self.refused_task_ids) - self.downstream_task_ids:
            raise AirflowFailException(
                f"`refused_task_ids`: {sorted(unknown)} are not directly downstream of {self.task_id!r}; those "
                f"tasks are {sorted(self.downstream_task_ids)}."
            )
        if not found["passed"]:
            self.log.warning("The evaluation did not pass: %s", " ".join(found["faults"]))
        refused = self.downstream_task_ids & set(self.refused_task_ids)
        other_side = refused if found["passed"] else self.downstream_task_ids - refused
        # Skipping a teardown would leave a GPU that bills.
        skipped = [task for task in self.downstream_list if task.task_id in other_side and not task.is_teardown]
        names = sorted(task.task_id for task in skipped)
        ti = context["ti"]
        map_index = -1 if ti.map_index is None else ti.map_index
        ti.xcom_push(key="return_value", value=found)
        if map_index >= 0 and (
            outside := sorted(task.task_id for task in skipped if not self._is_mapped_with(task))
        ):
            raise AirflowFailException(
                f"`on_failure` 'branch': one instance of the mapped task {self.task_id!r} cannot skip {outside}, "
                "which are not in its mapped task group. Move them into it, or use `on_failure` 'skip'."
            )
        ti.xcom_push(key=XCOM_SKIPMIXIN_KEY, value={XCOM_SKIPMIXIN_SKIPPED: names})
        # Not `SkipMixin.skip`: from Airflow 3.2 on it skips nothing in a mapped task group, apache/airflow#67265.
        raise DownstreamTasksSkipped(tasks=[(name, map_index) for name in names])  # type: ignore[no-untyped-call]

    def _is_mapped_with(self, task: Any) -> bool:
        """Returns whether a task has an instance for each one of this mapped task."""
        group = self.get_closest_mapped_task_group()
        return group is not None and task.get_closest_mapped_task_group() is group

    def _input_data(self) -> dict[str, Any]:
        # A branch follows from the report.
        return super()._input_data() | ({"on_failure": "report"} if self.on_failure == "branch" else {})
