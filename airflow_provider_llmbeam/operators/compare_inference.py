"""`CompareInferenceOperator`: compares a job with one of another prompt, model or other parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.operators.assets import add_manifest
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.experiment import check_experiment, log_experiment
from airflow_provider_llmbeam.operators.in_process import InProcessOperator
from airflow_provider_llmbeam.operators.literal import plain, unrendered
from airflow_provider_llmbeam.operators.other_models import OtherModels

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_llmbeam.spec.evaluation import Alternative, Judge
    from airflow_provider_llmbeam.spec.job import JobSpec


class CompareInferenceOperator(InProcessOperator):
    """Compares a `RunInferenceOperator` with the same arguments with another prompt, model or other parameters.

    Both answer the same sample of the source, in a process on the worker, regardless of the `runner`; nothing is
    written to the sink. The sample are the rows whose keys have the smallest hashes, the same ones in every run
    while the source has them. The answers go into a journal that all runs of this task share, or into the `cache`.
    Below `state_uri` (or the sink) it writes `comparison.json`, and `comparison.txt` with the rows whose answers
    differ, which the log shows as well.

    Args:
        other: What is different, see `spec.evaluation.Alternative`. Airflow does not render its prompt.
        sample_size: Number of rows, at most 5,000.
        judge: Judges the answers that differ, see `spec.evaluation.Judge`. Airflow does not render its rubric.
        max_cases: Maximum number of differing answers that are listed.
        seed: Seed of the bootstrap intervals.
        other_conn_id: Connection of the other model. `None`: that of the job for a model of the same type; for
            another one, the environment of the worker.
        judge_conn_id: Connection of the judge's model; `None` as above.
        experiment: Experiment of Vertex AI in which a run is written, see `EvaluateInferenceOperator`.
        kwargs: Arguments of `RunInferenceOperator`. `deferrable` has no effect: a comparison never defers.

    Templated:
        The fields of `RunInferenceOperator`, and `other`, `judge`, `other_conn_id`, `judge_conn_id` and
        `experiment`.

    XCom:
        The manifest: `agreement` by field with its interval, cost per 1,000 rows and latency of both, verdicts of
        the judge, and the addresses of the report and the text. It is also the `extra` of the events of the assets
        in `outlets`.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid, or there is nothing to send.
        JobFailedError: A server left rows unanswered; a retry sends only those.
    """

    _input = "Comparison"
    _own = ("other", "sample_size", "judge", "max_cases", "seed")
    template_fields: Sequence[str] = (
        *InProcessOperator.template_fields,
        "other",
        "judge",
        "other_conn_id",
        "judge_conn_id",
        "experiment",
    )

    def __init__(
        self,
        *,
        other: Alternative | Mapping[str, Any],
        sample_size: int = 200,
        judge: Judge | Mapping[str, Any] | None = None,
        max_cases: int = 20,
        seed: int = 0,
        other_conn_id: str | None = None,
        judge_conn_id: str | None = None,
        experiment: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.other = unrendered(plain(other), "prompt")
        self.sample_size = sample_size
        self.judge = unrendered(plain(judge), "rubric")
        self.max_cases = max_cases
        self.seed = seed
        self.other_conn_id = other_conn_id
        self.judge_conn_id = judge_conn_id
        self.experiment = experiment
        check_experiment(experiment)
        self._refuse_problems("other.prompt", "judge.rubric")

    def resolve_job(self, context: Context) -> tuple[JobSpec, dict[str, str], Any]:
        """Returns the job, its secrets, and the comparison."""
        spec, environment = self._job(context)
        models = OtherModels(self.model, self.llmbeam_conn_id, environment)
        data = self._input_data()
        for field, conn_id in (("other", self.other_conn_id), ("judge", self.judge_conn_id)):
            part = data.get(field)
            if isinstance(part, Mapping) and part.get("model") is not None:
                data[field] = {**part, "model": models.complete_model(part["model"], conn_id)}
        comparison = self._parse_input(data)
        return spec, environment, comparison

    def execute(self, context: Context) -> dict[str, Any]:
        """Compares the two jobs."""
        with errors_of_airflow(self):
            spec, environment, comparison = self.resolve_job(context)
            job, others = (spec, environment), comparison.models
            found = self._run_step("compare", comparison, job, context, others=others)
            if self.experiment is not None:
                run = log_experiment(self.experiment, spec, found, context, self.gcp_conn_id)
                found["experiment_run"] = run
        add_manifest(context, self.outlets, found)
        return found
