"""What is asked of the steps that measure answers: evaluation, comparison, preview and review."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.answer_comparison import (
    Judge,
    NumericComparison,
    TextComparison,
    by_type,
    rubric_fault,
)
from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel, without_user
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.fields.names import FunctionPath, MetricName
from airflow_provider_llmbeam.spec.fields.suggestion import nearest
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import Generation, Model
from airflow_provider_llmbeam.spec.prompt import Prompt
from airflow_provider_llmbeam.spec.prompt.answer_type import checked_schema, schema_of
from airflow_provider_llmbeam.spec.source import StoredSource, format_of

__all__ = [
    "Alternative",
    "AnswerSample",
    "Comparison",
    "Evaluation",
    "ExactMetric",
    "GoldenAddition",
    "Judge",
    "JudgeMetric",
    "LabelF1Metric",
    "Metric",
    "NumericMetric",
    "PreviewSample",
    "PythonMetric",
    "ValidJsonMetric",
    "Verdict",
]


class _FieldMetric(SpecModel):
    """Fields of a metric that compares a field of the answer with a column of the golden set.

    Attributes:
        field: Dotted path of the field, for answers with an output schema. `None`: the name of the metric. An
            answer without a schema, or one that is no object, is compared as a whole.
        expected: Column with the expected value. `None`: `expected_` and the name of the metric.
    """

    field: Annotated[str, Field(min_length=1)] | None = None
    expected: Annotated[str, Field(min_length=1)] | None = None

    def column_of(self, name: str) -> str:
        """Returns the column with the expected values of a metric with this name."""
        return self.expected or f"expected_{name}"


class ExactMetric(TextComparison, _FieldMetric):
    """Share of the rows whose answer equals the expected value."""

    type: Literal["exact"] = "exact"


class LabelF1Metric(TextComparison, _FieldMetric):
    """Mean of the F1 scores of all labels, expected or answered (macro-averaged)."""

    type: Literal["label_f1"] = "label_f1"


class NumericMetric(NumericComparison, _FieldMetric):
    """Share of the rows whose number differs from the expected one by at most the larger tolerance."""

    type: Literal["numeric"] = "numeric"


class ValidJsonMetric(SpecModel):
    """Share of the rows whose answer is valid JSON.

    Attributes:
        json_schema: JSON Schema that the answer must match, or a type that has one. `None`: any JSON value, or,
            for a job with `prompt.output_schema`, that schema, which every answer of such a job matches.
    """

    type: Literal["valid_json"] = "valid_json"
    json_schema: Mapping[str, Any] | None = None

    _of_a_type = field_validator("json_schema", mode="before")(schema_of)

    _is_schema = field_validator("json_schema")(checked_schema)


class JudgeMetric(Judge):
    """Mean grade that a judge gives to the answers: from 1, which scores 0, to 5, which scores 1."""

    type: Literal["judge"] = "judge"

    @model_validator(mode="after")
    def _shows_the_answer(self) -> Self:
        if (fault := rubric_fault(self.rubric, "answer")) is not None:
            raise FieldFaultError("rubric", fault)
        return self


class PythonMetric(SpecModel):
    """Mean of the values of a function of yours.

    Attributes:
        function: Where it is, `package.module:name`; the Python of the job imports it. It is called with the row
            of the golden set and the answer (an object with an output schema, else a text), and returns whether
            the answer is right, or a number from 0 to 1.
    """

    type: Literal["python"] = "python"
    function: FunctionPath


Metric = Annotated[
    Annotated[
        ExactMetric | LabelF1Metric | NumericMetric | ValidJsonMetric | JudgeMetric | PythonMetric,
        Field(discriminator="type"),
    ],
    BeforeValidator(by_type),
]


_Share = Annotated[float, Field(ge=0, le=1)]


class Evaluation(SpecModel):
    """The evaluation of a job: a golden set through its prompt, model and parameters.

    Attributes:
        golden: The golden set: rows with the columns that the prompt uses, and columns with expected values; at
            most 5,000.
        metrics: Metrics by name. A text in place of a metric is its `type`.
        minimum: Smallest accepted score by name of a metric, from 0 to 1.
        max_drop: Largest accepted difference to the scores of the last accepted evaluation of the same golden set
            and metrics; 0 accepts none that is lower. `None`: they are not compared.
        on_failure: What follows if a score is not accepted. `fail` fails the task, without a retry; `skip` skips
            it, and with it the tasks after it; `report` only says so.
        max_cases: Maximum number of wrong answers that are listed.
        seed: Seed of the bootstrap intervals.
    """

    golden: StoredSource
    metrics: Annotated[Mapping[MetricName, Metric], Field(min_length=1)]
    minimum: Mapping[str, _Share] = Field(default_factory=dict)
    max_drop: _Share | None = None
    on_failure: Literal["fail", "skip", "report"] = "fail"
    max_cases: Annotated[int, Field(ge=0, le=1000)] = 20
    seed: int = 0

    @model_validator(mode="after")
    def _thresholds_are_of_metrics(self) -> Self:
        for name in self.minimum:
            if name not in self.metrics:
                known = ", ".join(f"`{metric}`" for metric in self.metrics)
                instead = nearest(name, set(self.metrics)) or f"the metrics are {known}"
                raise FieldFaultError(f"minimum.{name}", f"there is no such metric; {instead}")
        return self

    @property
    def expected_columns(self) -> tuple[str, ...]:
        """Columns of the golden set with expected values."""
        compared = (ExactMetric, LabelF1Metric, NumericMetric)
        return tuple(
            metric.column_of(name) for name, metric in self.metrics.items() if isinstance(metric, compared)
        )

    @property
    def models(self) -> tuple[Model, ...]:
        """Models of the judges."""
        return tuple(metric.model for metric in self.metrics.values() if isinstance(metric, JudgeMetric))


class Alternative(SpecModel):
    """What is different in the other job; each part replaces that of the job as a whole.

    Attributes:
        prompt: The other prompt. `None`: that of the job.
        model: The other model. `None`: that of the job.
        generation: The other parameters. `None`: those of the job.
        limits: The other rates, budget and price. `None`: those of the job, without its `price` if the
            model differs.
    """

    prompt: Prompt | None = None
    model: Model | None = None
    generation: Generation | None = None
    limits: Limits | None = None

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if self.prompt is None and self.model is None and self.generation is None:
            raise ValueError("needs a `prompt`, a `model` or a `generation` that differs from those of the job")
        return self


class Comparison(SpecModel):
    """The comparison of two jobs on the same sample of a source.

    Attributes:
        other: What is different in the other job.
        sample_size: Number of rows: those with the smallest hashes of their keys, which are a random selection,
            and the same in every run.
        judge: Judges the answers that differ, each pair in both orders. `None`: they are not judged.
        max_cases: Maximum number of differing answers that are listed.
        seed: Seed of the bootstrap intervals.
    """

    other: Alternative
    sample_size: Annotated[int, Field(ge=1, le=5000)] = 200
    judge: Judge | None = None
    max_cases: Annotated[int, Field(ge=0, le=1000)] = 20
    seed: int = 0

    @field_validator("judge")
    @classmethod
    def _shows_both_answers(cls, judge: Judge | None) -> Judge | None:
        if judge is not None and (fault := rubric_fault(judge.rubric, "first", "second")) is not None:
            raise FieldFaultError("rubric", fault)
        return judge

    @property
    def models(self) -> tuple[Model, ...]:
        """The other model and that of the judge, if there are any."""
        judge = None if self.judge is None else self.judge.model
        return tuple(model for model in (self.other.model, judge) if model is not None)


class PreviewSample(SpecModel):
    """The rows that a preview of a job shows.

    Attributes:
        rows: Number of rows.
        by: `random` selects rows at random, the same ones for the same `seed`; `length` short ones, long ones and
            some between them, by the tokens of their prompts.
        seed: Seed of the selection at random.
        keys: Keys of the rows, in place of `rows` and `by`: each the value of the key column, or the JSON list of
            the values of several ones, or the JSON object that a preview shows.
        sends: Whether the prompts are sent; otherwise they are only rendered.
    """

    rows: Annotated[int, Field(ge=1, le=100)] = 3
    by: Literal["random", "length"] = "random"
    seed: int = 0
    keys: tuple[Annotated[str, AfterValidator(valid_text)], ...] = ()
    sends: bool = True


def _json_lines(uri: str | None) -> str | None:
    """Validates the address of a file of JSON lines."""
    if without_user(uri) is None or uri is None:
        return None
    if any(sign in uri for sign in "*?["):
        raise ValueError("must be one file, not a glob")
    if not uri.endswith((".jsonl", ".ndjson")) or format_of(uri) != "jsonl":
        raise ValueError("must end in .jsonl: its rows are written as JSON lines")
    return uri


class AnswerSample(SpecModel):
    """The answers of a job that people review.

    They are selected among the rows with the smallest hashes of their keys, of which those in the golden set and
    those without an answer are left out.

    Attributes:
        rows: Number of answers.
        seed: Seed of the selection at random: the same one selects the same rows.
        stratify_by: Field of the answer of which each value gets an equal number of rows, as far as it has so
            many; `answer` for answers without fields. `None`: each row is as likely as another.
        fields: Fields of the answer that are reviewed. None: all.
        columns: Columns of the row that the reviewer sees. None: all.
        golden: Golden set whose rows are not reviewed again; its files need not exist yet.
        review_uri: File of the sample, `.jsonl`. `None`: `review.jsonl` below the state of the job.
    """

    rows: Annotated[int, Field(ge=1, le=500)] = 20
    seed: int = 0
    stratify_by: Annotated[str, Field(min_length=1)] | None = None
    fields: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    columns: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    golden: StoredSource | None = None
    review_uri: str | None = None

    _file = field_validator("review_uri")(_json_lines)


class Verdict(SpecModel):
    """What a person says of an answer.

    Attributes:
        review_uri: File of the sample that has the answer.
        key: Key of its row, as JSON.
        is_accepted: Whether the row becomes a golden row.
        values: Expected values by field: those of the answer, or what the person corrected them to.
        reviewed_by: Name of the person; `None` if nobody answered in time.
        reviewed_at: Time of the verdict, ISO 8601.
    """

    review_uri: str
    key: str
    is_accepted: bool
    values: Mapping[str, Any]
    reviewed_by: str | None = None
    reviewed_at: str | None = None


class GoldenAddition(SpecModel):
    """Golden rows that verdicts add to a golden set.

    Attributes:
        golden_uri: File of the golden set, `.jsonl`; it is created if it does not exist.
        verdicts: The verdicts; of several ones on the same row the last counts.
        review_uri: File of the sample, if it was named; a verdict cannot name another one. `None`: `review.jsonl`
            below the state of a run of the job.
    """

    golden_uri: str
    verdicts: tuple[Verdict, ...]
    review_uri: str | None = None

    _file = field_validator("golden_uri", "review_uri")(_json_lines)
