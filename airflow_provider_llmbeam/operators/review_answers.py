"""`SampleAnswersOperator`, `review_answers` and `AddGoldenRowsOperator`: answers that people review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.in_process import InProcessOperator
from airflow_provider_llmbeam.operators.literal import plain

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from airflow_provider_llmbeam.spec.source import Source


class SampleAnswersOperator(InProcessOperator):
    """Selects answers of a `RunInferenceOperator` with the same arguments, for a review by people.

    It reads the source and the journal of the run, in a process on the worker, whatever sink the answers went to;
    it sends nothing. The sample is a file of golden rows, each with the columns of the source and, as
    `expected_…`, the fields of the answer. The same seed selects the same rows. Rows without an answer are left
    out. Of a source of more than 64 MiB, portions are read; the selection is among 5,000 rows, or 500 with media.

    Args:
        manifest: The manifest of the run, e.g. `night.output`.
        rows: Number of answers, at most 500.
        seed: Seed of the selection.
        stratify_by: Field of the answer of which each value gets an equal number of rows, as far as it has so
            many; `answer` for answers without a schema. `None`: each row is as likely as another.
        fields: Fields of the answer that are reviewed. None: all.
        columns: Columns of the row that the reviewer sees, each cut at 4,000 characters. None: all.
        golden: Golden set whose rows are not reviewed again; its files need not exist yet.
        review_uri: File of the sample, `.jsonl`. `None`: `review.jsonl` below the state of the run.
        kwargs: Arguments of `RunInferenceOperator`. `deferrable` has no effect.

    Templated:
        The fields of `RunInferenceOperator`, and all of its own.

    XCom:
        The reviews, for `review_answers`; and with the key `manifest`, `review_uri`, `rows`, and
        `labels` with their numbers of rows.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid, or the journal has no answers to these rows.
    """

    _input = "AnswerSample"
    _own = ("rows", "seed", "stratify_by", "fields", "columns", "golden", "review_uri")
    template_fields: Sequence[str] = (*InProcessOperator.template_fields, "manifest", *_own)

    def __init__(
        self,
        *,
        manifest: Mapping[str, Any] | XComArg,
        rows: int | str = 20,
        seed: int | str = 0,
        stratify_by: str | None = None,
        fields: Sequence[str] = (),
        columns: Sequence[str] = (),
        golden: Source | Mapping[str, Any] | XComArg | None = None,
        review_uri: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.manifest = manifest
        self.rows = rows
        self.seed = seed
        self.stratify_by = stratify_by
        self.fields = fields
        self.columns = columns
        self.golden = plain(golden)
        self.review_uri = review_uri
        self._refuse_problems()

    def execute(self, context: Context) -> list[str]:
        """Selects the answers."""
        with errors_of_airflow():
            if not isinstance(self.manifest, Mapping) or "name" not in self.manifest:
                raise JobSpecError(
                    "`manifest`: must be the manifest of a run, e.g. `night.output`; got "
                    f"{type(self.manifest).__name__}."
                )
            self.job_name = self.manifest["name"]
            job = self._job(context)
            sample = self._parse_input(self._input_data())
            places = (sample.golden, sample.review_uri)
            found = self._run_step("sample_answers", sample, job, context, places=places)
        reviews: list[str] = found.pop("reviews")
        context["ti"].xcom_push(key="manifest", value=found)
        return reviews


def review_answers(reviews: XComArg, *, task_id: str = "review", **kwargs: Any) -> MappedOperator:
    """Makes a task per answer of a sample, in which a person reviews it with Airflow's form for required actions.

    The form shows the row, and the fields of the answer, which the person may correct. `Accept` makes a golden row
    with the values of the form, `Leave out` makes none. The tasks wait without a worker slot. Subject and map
    index name the row and its answer, e.g. `T103-00109 · label = delivery`.

    Args:
        reviews: The reviews of a sample, `sample.output`.
        task_id: Id of the tasks, which are mapped.
        kwargs: Arguments of Airflow's `HITLOperator`: `assigned_users`; `notifiers`, each called once for each
            answer; `response_timeout`, after which an answer is left out; and those of `BaseOperator`.

    Returns:
        The tasks; their XComs are the verdicts as JSON text, see `spec.evaluation.Verdict`.
    """
    from airflow_provider_llmbeam.operators.review_form import ReviewAnswerOperator

    kwargs.setdefault("map_index_template", "{{ task.subject }}")
    return ReviewAnswerOperator.partial(task_id=task_id, **kwargs).expand(review=reviews)


class AddGoldenRowsOperator(InProcessOperator):
    """Adds the rows that people accepted or corrected to a golden set, for `EvaluateInferenceOperator`.

    A row of the golden set with the same key is replaced. The file has its old rows or all new ones; runs at the
    same time wait for each other, on this machine and on Cloud Storage. The column `llmbeam_review` of a golden
    row says whether the answer was `accepted` or `corrected`, by whom and when.

    Args:
        verdicts: The verdicts, `review.output` of `review_answers`.
        golden_uri: File of the golden set, `.jsonl`; it is created if it does not exist.
        review_uri: `review_uri` of the sample, if it has one.
        kwargs: Arguments of `RunInferenceOperator`, whose answers were reviewed. `deferrable` has no effect.

    Templated:
        The fields of `RunInferenceOperator`, and `verdicts`, `golden_uri` and `review_uri`.

    XCom:
        The manifest: `golden_uri`, its number of `rows`, and the numbers of answers that were `accepted`,
        `corrected` and `left_out`.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid, or a corrected value can be no answer; nothing was
            written.
        JobFailedError: Other processes have been writing the file for ten minutes.
    """

    _input = "GoldenAddition"
    template_fields: Sequence[str] = (*InProcessOperator.template_fields, "verdicts", "golden_uri", "review_uri")

    def __init__(
        self,
        *,
        verdicts: Sequence[str] | XComArg,
        golden_uri: str,
        review_uri: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.verdicts = verdicts
        self.golden_uri = golden_uri
        self.review_uri = review_uri
        self._refuse_problems()

    def execute(self, context: Context) -> dict[str, Any]:
        """Adds the rows."""
        with errors_of_airflow():
            job = self._job(context)
            verdicts: Any = self.verdicts  # a sequence that reads the XComs of mapped tasks as it is iterated
            addition = self._parse_input({**self._input_data(), "verdicts": [*verdicts]})
            places = (addition.golden_uri, *(verdict.review_uri for verdict in addition.verdicts))
            return self._run_step("add_golden", addition, job, context, places=places)

    def _input_data(self) -> dict[str, Any]:
        # The verdicts are known when people have answered.
        return {"golden_uri": self.golden_uri, "review_uri": self.review_uri, "verdicts": ()}
