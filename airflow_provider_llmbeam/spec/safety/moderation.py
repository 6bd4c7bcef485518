"""Moderation by a guard model: which texts it judges, how its verdict is read, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.limits import Limits, unpriced_fault
from airflow_provider_llmbeam.spec.model import Generation, Model
from airflow_provider_llmbeam.spec.sink import MilvusSink

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec

#: What a guard judges: the prompt of a row before it is sent, or its answer before it is published.
Side = Literal["input", "output"]
#: What follows from an unsafe verdict.
Action = Literal["fail", "flag", "replace"]
#: The place of the text in `Moderation.template`.
PLACE = "{text}"

Category = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^,]+$")]


class Moderation(SpecModel):
    """Moderation of prompts and answers by a guard model, which may be any model that the job could ask.

    The guard judges each distinct text once; its verdicts are in the journal. A row whose text it could not judge,
    as its server does not answer, fails, and is not published without a verdict.

    Attributes:
        model: The guard model.
        conn_id: Connection of Airflow with its key, base URL, project and location. `None`: that of the job for a
            model of the same type; for another one the key is in the environment.
        on: What it judges: the prompt (its text, not `prompt.system` and no media), the answer, or both.
        template: What it is asked: `{text}` stands for the text. It is no Jinja2 template.
        system: Its system instruction.
        verdict: How its answer is read. `llama_guard`: `safe`, or `unsafe` and on the next lines the categories.
            `json`: it is asked for an object with `unsafe` and `categories`, which any model can answer that
            `template` or `system` tells what is unsafe. A text with a category is unsafe in any case.
            `shield_gemma`: `Yes`, or `No`, to the policy in `system` or `template`.
        min_probability: Least probability of `Yes` at which a text is unsafe, with `shield_gemma`. `None`: the
            word decides. Needs `generation` with `logprobs` and `max_output_tokens` 1.
        generation: Parameters of its answers.
        limits: Its rates and its budget, which are not those of the job.
        action: What follows if it calls a text unsafe. `fail`: the row goes to the dead letter with the kind
            `moderated`. `flag`: the categories are in the column `llmbeam_moderation_input` or `…_output` of the
            output row. `replace`: `replacement` is published instead of the answer. A prompt that fails or is
            replaced is not sent to the model of the job.
        categories: Another action for a category, or `allow`. Of several categories the strictest action counts.
        replacement: The text for `replace`.
        on_unreadable: What follows if its answer is no verdict, or its own provider has blocked the text. `fail`:
            as above, with the category `unreadable`. `flag`: the column has it.
    """

    model: Model
    conn_id: Annotated[str, Field(min_length=1)] | None = None
    on: Annotated[tuple[Side, ...], Field(min_length=1)] = ("input", "output")
    template: str = PLACE
    system: str | None = None
    verdict: Literal["llama_guard", "json", "shield_gemma"] = "llama_guard"
    min_probability: Annotated[float, Field(gt=0, lt=1)] | None = None
    generation: Generation = Generation(temperature=0.0)
    limits: Limits = Limits()
    action: Action = "fail"
    categories: Mapping[Category, Action | Literal["allow"]] = Field(default_factory=dict)
    replacement: Annotated[str, Field(min_length=1)] | None = None
    on_unreadable: Literal["fail", "flag"] = "fail"

    @field_validator("template")
    @classmethod
    def _has_place(cls, template: str) -> str:
        if PLACE not in template:
            raise ValueError(f"must show the guard what it judges: it lacks {PLACE!r}")
        return template

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if self.verdict != "llama_guard" and self.system is None and self.template.strip() == PLACE:
            raise FieldFaultError(
                "system",
                "this field, or a longer `template`, is needed to tell the guard what is unsafe",
                NOT_SHOWN,
            )
        if self.min_probability is not None:
            if self.verdict != "shield_gemma":
                raise FieldFaultError(
                    "min_probability", "needs the `verdict` 'shield_gemma'", self.min_probability
                )
            if not self.generation.logprobs or self.generation.max_output_tokens != 1:
                raise FieldFaultError(
                    "generation",
                    "must have `logprobs` and `max_output_tokens` 1 with `min_probability`, that of one token",
                    NOT_SHOWN,
                )
        if self.replaces and self.replacement is None:
            raise FieldFaultError("replacement", "this field is needed with the action 'replace'", NOT_SHOWN)
        if fault := unpriced_fault(self.model, self.limits):
            raise fault
        return self

    @property
    def replaces(self) -> bool:
        """Whether a text may be replaced."""
        return "replace" in (self.action, *self.categories.values())

    @property
    def flags(self) -> bool:
        """Whether a row may be published whose text was called unsafe, or has no verdict that can be read."""
        return self.replaces or "flag" in (self.action, self.on_unreadable, *self.categories.values())

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """What an output row has only with moderation; in a sink with `llmbeam_` before the name."""
        return tuple(f"moderation_{side}" for side in ("input", "output") if self.flags and side in self.on)

    def find_fault(self, spec: JobSpec) -> FieldFaultError | None:
        """Returns why the moderation of a job cannot work, or `None`."""
        if spec.embedding is not None and "output" in self.on:
            return FieldFaultError(
                "safety.moderation.on", "must be ['input'] to embed: a vector is no text", self.on
            )
        if self.replaces and (spec.embedding is not None or spec.prompt.output_schema is not None):
            answers = "vectors" if spec.embedding is not None else "values of `prompt.output_schema`"
            return FieldFaultError(
                "safety.moderation.action",
                f"must be 'fail' or 'flag', also in `categories`, as the answers are {answers}: no text replaces "
                "them",
                self.action,
            )
        if self.flags and isinstance(spec.sink, MilvusSink):
            return FieldFaultError(
                "safety.moderation.action",
                "must be 'fail', also in `categories` and `on_unreadable`, with a sink of type 'milvus', which "
                "has no column for a flag",
                self.action,
            )
        return None
