"""Cascades: cheaper models answer the rows that they answer like `model`, and `model` the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.answer_comparison import (
    Judge,
    NumericComparison,
    TextComparison,
    by_type,
    rubric_fault,
)
from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.distilled import DistilledStage
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.inference import Inference
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import Generation, Model
from airflow_provider_llmbeam.spec.prompt import Prompt
from airflow_provider_llmbeam.spec.prompt.answer_type import AnswerType, answer_type
from airflow_provider_llmbeam.spec.prompt.labels import find_label_fields

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec

#: Name in `agreement` of all fields that it does not name, and of an answer without fields.
ALL_FIELDS = "*"
#: Share of the allowed disagreement at which the default sample still certifies the target.
_CERTIFIED_AT = 2 / 3
_ROUND = 100
_MAX_STAGES = 4
#: Parts of a job that a stage may have of its own.
_PARTS = ("prompt", "model", "generation", "inference", "limits")


class LogprobScore(SpecModel):
    """The probability that the model gives its answer, from its log-probabilities.

    Attributes:
        of: `mean` of the log-probabilities of the answer's tokens, their `minimum`, or that of the tokens of the
            `label`: the value of the first field with an `enum` or of type boolean, or the whole answer without
            fields.
    """

    type: Literal["logprob"] = "logprob"
    of: Literal["mean", "minimum", "label"] = "mean"


class RepeatsScore(SpecModel):
    """The share of several answers to the same prompt that agree with the first one, which is the stage's answer.

    Attributes:
        samples: Number of answers, each of which is paid for.
    """

    type: Literal["repeats"] = "repeats"
    samples: Annotated[int, Field(ge=2, le=20)] = 3


class FieldScore(SpecModel):
    """A number in the answer with which the model states its confidence.

    It is not believed: like other scores it only orders the answers.

    Attributes:
        field: Dotted path of the field in the answers of `prompt.output_schema`.
    """

    type: Literal["field"] = "field"
    field: Annotated[str, Field(min_length=1)] = "confidence"


Score = Annotated[
    Annotated[LogprobScore | RepeatsScore | FieldScore, Field(discriminator="type")], BeforeValidator(by_type)
]


class Stage(SpecModel):
    """A cheaper model that is asked before `model`.

    Attributes:
        model: The model.
        prompt: Its prompt. `None`: that of the job.
        generation: Its parameters. `None`: those of the job.
        inference: Service tier of its prompts, which are sent online. `None`: that of the job.
        limits: Its rates. `None`: those of the job, without its `price` if the model differs. The budget is that
            of the job, over all stages.
        score: What orders its answers by how much they can be trusted. A text is its `type`.
    """

    type: Literal["model"] = "model"
    model: Model
    prompt: Prompt | None = None
    generation: Generation | None = None
    inference: Inference | None = None
    limits: Limits | None = None
    score: Score = LogprobScore()

    @property
    def name(self) -> str:
        """Its name in reports and in `llmbeam_answered_by`."""
        return self.model.name


def _of_a_model(value: Any) -> Any:
    """Returns a stage, as plain data, with its type, which is `model` by default."""
    value = from_text(value)
    return {"type": "model", **value} if isinstance(value, Mapping) else value


AnyStage = Annotated[Annotated[Stage | DistilledStage, Field(discriminator="type")], BeforeValidator(_of_a_model)]


def _some_stages(stages: tuple[AnyStage, ...]) -> tuple[AnyStage, ...]:
    if not 1 <= len(stages) <= _MAX_STAGES:
        raise ValueError(f"must have 1 to {_MAX_STAGES} stages; `model` is not one of them")
    for index, stage in enumerate(stages):
        if stage.limits is not None and (field := stage.limits.budget_field) is not None:
            raise FieldFaultError(
                f"{index}.limits.{field}",
                "belongs into `limits` of the job: one budget is over all stages",
                NOT_SHOWN,
            )
    return stages


class ExactAgreement(TextComparison):
    """Answers that are equal."""

    type: Literal["exact"] = "exact"


class SetF1Agreement(TextComparison):
    """Lists whose sets of items have an F1 score of at least a minimum.

    Attributes:
        minimum: Smallest F1 score.
    """

    type: Literal["set_f1"] = "set_f1"
    minimum: Annotated[float, Field(gt=0, le=1)] = 0.8


class NumericAgreement(NumericComparison):
    """Numbers that differ by at most a tolerance, the larger of the two."""

    type: Literal["numeric"] = "numeric"


class JudgeAgreement(Judge):
    """Answers to which a judge gives a minimum grade, from 1, which scores 0, to 5, which scores 1.

    Attributes:
        minimum: Smallest score; 0.75 is the grade 4.
    """

    type: Literal["judge"] = "judge"
    minimum: Annotated[float, Field(gt=0, le=1)] = 0.75

    @model_validator(mode="after")
    def _shows_both_answers(self) -> Self:
        if (fault := rubric_fault(self.rubric, "answer", "expected")) is not None:
            raise FieldFaultError("rubric", fault)
        return self


Agreement = Annotated[
    Annotated[
        ExactAgreement | SetF1Agreement | NumericAgreement | JudgeAgreement,
        Field(discriminator="type"),
    ],
    BeforeValidator(by_type),
]


class Cascade(SpecModel):
    """Cheaper stages before `model`, which only answers the rows that they might answer differently.

    Random draws of the prompts are answered by every stage and by `model`. From them follows a threshold for each
    stage. A row keeps the answer of the first stage whose score reaches its threshold, and `model` answers the
    others. With the probability `confidence` the final answers agree with those of `model` on at least
    `target_agreement` of the rows.

    Attributes:
        stages: The stages, cheapest first.
        target_agreement: Smallest share of the rows whose final answer agrees with that of `model`.
        confidence: Probability with which the thresholds keep this target.
        sample_rows: Number of draws, with replacement and with probability by the number of rows. `None`: as many
            as certify the target at two thirds of the disagreement that it allows; 1,000 for 0.95 and 0.95.
        class_agreement: Smallest share among the rows of each class, by the label of `model`. A class with too few
            draws to certify it is not guaranteed: what a stage predicts to be of it escalates. A class is a value
            of the first field with an `enum` that `agreement` compares, or of such an answer without fields.
        agreement: When two answers agree: a comparison of the whole answer, with all its fields, or comparisons by
            dotted path of a field. `*` is all fields that are not named; without it they may differ. A text in
            place of a comparison is its `type`.
        audit_ratio: Share of the rows with the answer of a stage that `model` answers as well in later runs, at
            least 30. If these contradict the target, the cascade is calibrated again.
        seed: Seed of the draws.
    """

    stages: Annotated[tuple[AnyStage, ...], AfterValidator(_some_stages)]
    target_agreement: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    sample_rows: Annotated[int, Field(ge=1)] | None = None
    class_agreement: Annotated[float, Field(gt=0, lt=1)] = 0.8
    agreement: Mapping[str, Agreement] = {ALL_FIELDS: ExactAgreement()}
    audit_ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    seed: int = 0

    @field_validator("agreement", mode="before")
    @classmethod
    def _of_the_whole_answer(cls, agreement: Any) -> Any:
        found = from_text(agreement)
        is_one = isinstance(found, str | ExactAgreement | SetF1Agreement | NumericAgreement | JudgeAgreement)
        if is_one or (isinstance(found, Mapping) and isinstance(found.get("type"), str)):
            return {ALL_FIELDS: found}
        return found

    @field_validator("agreement")
    @classmethod
    def _compares(cls, agreement: Mapping[str, Agreement]) -> Mapping[str, Agreement]:
        if not agreement:
            raise ValueError("must have a comparison, e.g. 'exact' or {'label': 'exact'}")
        return agreement

    @model_validator(mode="after")
    def _sample_can_certify(self) -> Self:
        if self.sample_rows is not None and self.sample_rows < self.least_draws:
            raise FieldFaultError(
                "sample_rows",
                f"must be at least {self.least_draws:,}: a smaller sample cannot certify `target_agreement` "
                f"{self.target_agreement:g} with `confidence` {self.confidence:g}, even without a disagreement",
                self.sample_rows,
            )
        return self

    @property
    def least_draws(self) -> int:
        """Smallest number of draws that certifies the target, if all of them agree; half of them are the test."""
        return 2 * math.ceil(math.log(1 - self.confidence) / math.log(self.target_agreement) - 1e-9)

    @property
    def draws(self) -> int:
        """Number of draws: `sample_rows`, or its default."""
        if self.sample_rows is not None:
            return self.sample_rows
        allowed = 1 - self.target_agreement
        deviations = NormalDist().inv_cdf(self.confidence) / ((1 - _CERTIFIED_AT) * allowed)
        enough = 2 * deviations**2 * allowed * self.target_agreement
        return max(math.ceil(enough / _ROUND) * _ROUND, self.least_draws)

    @property
    def max_labels(self) -> int:
        """Largest number of draws for more labels of distilled stages."""
        return max((each.max_labels for each in self.stages if isinstance(each, DistilledStage)), default=0)

    @property
    def models(self) -> tuple[Model, ...]:
        """Models of the stages and of the judges."""
        return (*(stage.model for stage in self.stages), *(judge.model for judge in self.judges))

    @property
    def judges(self) -> tuple[JudgeAgreement, ...]:
        """Judges of `agreement`."""
        return tuple(each for each in self.agreement.values() if isinstance(each, JudgeAgreement))

    @property
    def templates(self) -> tuple[str, ...]:
        """Templates that are rendered with the columns of a row: prompts of stages, and rubrics of judges."""
        prompts = [stage.prompt for stage in self.stages if stage.prompt is not None]
        rubrics = (judge.rubric for judge in self.judges)
        return (*(text for each in prompts for text in (each.template, each.system or "")), *rubrics)

    def find_fault(self, spec: JobSpec) -> FieldFaultError | None:
        """Returns why the cascade of a job cannot work, or `None`."""
        faults: tuple[tuple[bool, str, str, Any], ...] = (
            (
                spec.state_uri is None,
                "state_uri",
                "this field is needed with `cascade`: the calibration is kept there for later runs",
                None,
            ),
            (
                spec.embedding is not None,
                "task",
                "must be 'generate' with `cascade`: whether two vectors agree is not defined",
                spec.task,
            ),
            (
                spec.conversation is not None,
                "conversation",
                "must be left out with `cascade`: the history of a turn would have answers of several models, and "
                "no sample has the same one",
                NOT_SHOWN,
            ),
        )
        found = (FieldFaultError(*fault) for is_met, *fault in faults if is_met)
        return next(found, None) or self._agreement_fault(spec) or self._score_fault(spec)

    def _agreement_fault(self, spec: JobSpec) -> FieldFaultError | None:
        schema = spec.prompt.output_schema
        for path in self.agreement:
            if path != ALL_FIELDS and (fault := field_fault(schema, path)) is not None:
                return FieldFaultError(f"cascade.agreement.{path}", fault)
        return None

    def _score_fault(self, spec: JobSpec) -> FieldFaultError | None:
        schema = spec.prompt.output_schema
        for index, stage in enumerate(self.stages):
            at, job = f"cascade.stages.{index}", self.stage_job(spec, index)
            if isinstance(stage, DistilledStage):
                if (found := stage.find_fault(spec, at)) is not None:
                    return found
                continue
            match stage.score:
                case FieldScore(field=path) if fault := field_fault(job.prompt.output_schema, path):
                    return FieldFaultError(f"{at}.score.field", fault, path)
                case LogprobScore(of="label") if schema is not None and not find_label_fields(schema):
                    return FieldFaultError(
                        f"{at}.score.of",
                        "must be 'mean' or 'minimum': no field of `prompt.output_schema` has an `enum`",
                        "label",
                    )
                case RepeatsScore() if job.generation.temperature == 0:
                    return FieldFaultError(
                        f"{at}.score",
                        "must be 'logprob' or 'field' with `generation.temperature` 0: repeated answers are then "
                        "equal, and say nothing",
                        "repeats",
                    )
            if job.prompt.output_schema != schema:
                return FieldFaultError(
                    f"{at}.prompt.output_schema",
                    "must be that of the job: the answers of all stages go into the same columns",
                    NOT_SHOWN,
                )
            if (stage.prompt or spec.prompt, stage.model, stage.generation or spec.generation) == (
                spec.prompt,
                spec.model,
                spec.generation,
            ):
                return FieldFaultError(
                    f"{at}.model", "must differ from `model`, which it repeats", stage.model.name
                )
        return None

    def names(self, model: Model) -> tuple[str, ...]:
        """Returns the names of the stages and of `model`, which differ even for one model."""
        found = [*(stage.name for stage in self.stages), model.name]
        places = [*(f"stage {number}" for number in range(1, len(found))), "model"]
        return tuple(
            name if found.count(name) == 1 else f"{name} ({place})"
            for name, place in zip(found, places, strict=True)
        )

    def stage_job(self, spec: JobSpec, index: int) -> JobSpec:
        """Returns a job like `spec` with the model of a stage, and with log-probabilities if its score needs them.

        A streamed answer has none, and the same text.
        """
        stage = self.stages[index]
        own = {part: value for part in _PARTS if (value := getattr(stage, part)) is not None}
        if isinstance(stage, DistilledStage):
            own |= stage.job_parts(spec)
        own.setdefault("inference", Inference(service_tier=spec.inference.service_tier))
        if stage.limits is not None:
            own["limits"] = stage.limits.model_copy(
                update={"budget_usd": spec.limits.budget_usd, "budget": spec.limits.budget}
            )
        elif stage.model != spec.model:
            own["limits"] = spec.limits.model_copy(update={"price": None})
        if isinstance(stage, Stage) and isinstance(stage.score, LogprobScore):
            generation = stage.generation or spec.generation
            kept = True if stage.score.of == "mean" else stage.score.of
            own["generation"] = generation.model_copy(update={"logprobs": kept, "stream": False})
        return spec.model_copy(update={**own, "cascade": None})


def stage_fault(spec: JobSpec, job_fault: Callable[[JobSpec], ValueError | None]) -> ValueError | None:
    """Returns the first fault of a stage as a job of its own, or `None`.

    Args:
        spec: The job.
        job_fault: Returns the fault of a job.
    """
    if spec.cascade is None:
        return None
    for index in range(len(spec.cascade.stages)):
        fault = job_fault(spec.cascade.stage_job(spec, index))
        if isinstance(fault, FieldFaultError) and fault.field == "generation.logprobs":
            return FieldFaultError(
                f"cascade.stages.{index}.score",
                f"must be 'repeats' or 'field': 'logprob' needs `generation.logprobs`, which {fault.want}",
                "logprob",
                *fault.related,
            )
        if isinstance(spec.cascade.stages[index], DistilledStage):
            # Its job has vectors; whether the sink takes the answers was asked of the job itself.
            if isinstance(fault, FieldFaultError) and fault.field.partition(".")[0] in (*_PARTS, "embedding"):
                within = "embedding." if fault.field.startswith("model") else ""
                field = f"cascade.stages.{index}.{within}{fault.field}"
                return FieldFaultError(field, fault.want, fault.got, *fault.related)
            continue
        if isinstance(fault, FieldFaultError) and fault.field.partition(".")[0] in _PARTS:
            return FieldFaultError(f"cascade.stages.{index}.{fault.field}", fault.want, fault.got, *fault.related)
        if fault is not None:
            return fault
    return None


def field_fault(schema: Mapping[str, Any] | None, path: str) -> str | None:
    """Returns why the answers of a job have no such field, or `None`.

    Args:
        schema: Schema of the answers; `None` for texts.
        path: Dotted path of the field.
    """
    if schema is None:
        return "needs `prompt.output_schema`: the answers are texts without fields"
    found: AnswerType | None = answer_type(schema)
    for name in path.split("."):
        if found is None or found.kind != "object":
            break
        fields = dict(found.fields)
        if name not in fields:
            return f"`prompt.output_schema` has no field {name!r}; it has {sorted(fields)}"
        found = fields[name]
    return None
