"""The distilled stage of a cascade: a classifier that learns from the sample's answers of `model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from airflow_provider_llmbeam.spec.answer_comparison import by_type
from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import EchoModel, Embedding, Generation, Model
from airflow_provider_llmbeam.spec.prompt import Prompt

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec


class ModelVectors(Embedding):
    """Vectors of an embedding model, one for each prompt, which the journal keeps.

    Attributes:
        model: The embedding model.
    """

    type: Literal["model"] = "model"
    model: Model


class TfidfVectors(SpecModel):
    """Words, pairs of words and parts of words of a text, hashed and weighted: free. Workers need scikit-learn."""

    type: Literal["tfidf"]


class ColumnVectors(SpecModel):
    """Vectors that a column of the source has, as lists of numbers of one length.

    Attributes:
        column: Name of the column.
    """

    type: Literal["column"]
    column: Annotated[str, Field(min_length=1)]


def _by_model(value: Any) -> Any:
    value = by_type(value)
    return {"type": "model", **value} if isinstance(value, Mapping) and "model" in value else from_text(value)


Vectors = Annotated[
    Annotated[ModelVectors | TfidfVectors | ColumnVectors, Field(discriminator="type")], BeforeValidator(_by_model)
]


class DistilledStage(SpecModel):
    """A classifier on vectors of the prompts, which learns from answers of `model` to the sample.

    It answers fields that are an enum, a boolean, an integer with `minimum` and `maximum`, or a list of these. Its
    score is the logarithm of the probability that all of them are right.

    Attributes:
        embedding: What turns a text into a vector: an embedding model, `tfidf`, or a column of the source.
        prompt: The text that becomes a vector, e.g. `{{ row.text }}`. `None`: the prompt of the job.
        limits: Rates of the embedding model. `None`: those of the job without its `price`.
        max_labels: Largest number of draws that it learns from besides those of the sample. They are drawn and
            sent to `model` only while its learning curve says that they save more requests than they are.
    """

    type: Literal["distilled"]
    embedding: Vectors
    prompt: Prompt | None = None
    limits: Limits | None = None
    max_labels: Annotated[int, Field(ge=0)] = 4000

    generation: ClassVar[None] = None
    inference: ClassVar[None] = None

    @property
    def is_free(self) -> bool:
        """Whether it sends no requests."""
        return not isinstance(self.embedding, ModelVectors)

    @property
    def model(self) -> Model:
        """The embedding model; without one, a model that hands the text on."""
        if isinstance(self.embedding, ModelVectors):
            return self.embedding.model
        return EchoModel(type="echo", name=self.embedding.type)

    @property
    def name(self) -> str:
        """Its name in reports and in `llmbeam_answered_by`."""
        return f"distilled {self.model.name}"

    def job_parts(self, spec: JobSpec) -> dict[str, Any]:
        """Returns the fields of the job that turns its texts into vectors."""
        template = self.prompt or spec.prompt
        parts: dict[str, Any] = {
            "model": self.model,
            "prompt": template.model_copy(update={"system": None, "output_schema": None, "media": ()}),
            "generation": Generation(),
        }
        if isinstance(self.embedding, ModelVectors):
            given = {name: getattr(self.embedding, name) for name in Embedding.model_fields}
            parts |= {"task": "embed", "embedding": Embedding(**given)}
        return parts

    def find_fault(self, spec: JobSpec, at: str) -> FieldFaultError | None:
        """Returns why a job cannot have it, or `None`.

        Args:
            spec: The job.
            at: Where the stage is.
        """
        if isinstance(self.embedding, ColumnVectors) and self.prompt is not None:
            return FieldFaultError(
                f"{at}.prompt", "must be left out with vectors of a column, which need no text", NOT_SHOWN
            )
        faults = [
            f"{'the answer' if head.field is None else repr(head.field)}"
            for head in find_heads(spec.prompt.output_schema, spec.generation.choices)
            if head.kind is None
        ]
        if not faults:
            return None
        return FieldFaultError(
            f"{at}.type",
            "must be left out: a classifier answers an enum, a boolean, an integer with `minimum` and `maximum`, "
            f"or a list of these, and {', '.join(faults)} is none of them",
            self.type,
        )


class HeadType(NamedTuple):
    """What a classifier answers: a field, or the whole answer.

    Attributes:
        field: Name of the field; `None` for the whole answer.
        kind: `one` of several values, `many` of them, or `None` for what a classifier cannot answer.
    """

    field: str | None
    kind: Literal["one", "many"] | None


def find_heads(schema: Mapping[str, Any] | None, choices: Sequence[str] = ()) -> tuple[HeadType, ...]:
    """Returns what a classifier has to answer.

    Args:
        schema: Schema of the answers; `None` for texts.
        choices: The only texts that a job without a schema may answer.
    """
    if schema is None:
        return (HeadType(None, "one" if choices else None),)
    fields = schema.get("properties")
    if isinstance(fields, Mapping) and fields:
        return tuple(HeadType(name, _kind(part, schema)) for name, part in fields.items())
    return (HeadType(None, _kind(schema, schema)),)


def _kind(schema: Any, root: Mapping[str, Any]) -> Literal["one", "many"] | None:
    if not isinstance(schema, Mapping):
        return None
    # As pydantic writes a field whose type is an Enum, and one that may be null.
    place, _, name = str(schema.get("$ref")).rpartition("/")
    if place == "#/$defs":
        return _kind(root.get("$defs", {}).get(name), {})
    options = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(options) == 1:
        return _kind(options[0], root)
    is_scale = schema.get("type") == "integer" and {"minimum", "maximum"} <= schema.keys()
    if {"enum", "const"} & schema.keys() or schema.get("type") == "boolean" or is_scale:
        return "one"
    return "many" if schema.get("type") == "array" and _kind(schema.get("items"), root) == "one" else None
