"""Columns of the datasets of a job, as far as its spec tells them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.prompt.answer_type import AnswerType, Kind, answer_type
from airflow_provider_llmbeam.spec.prompt.names import row_columns
from airflow_provider_llmbeam.spec.sink import MilvusSink
from airflow_provider_llmbeam.spec.source import OUTPUT_COLUMNS

_TYPES: dict[Kind, str | None] = {
    "text": "string",
    "integer": "integer",
    "number": "double",
    "boolean": "boolean",
    "object": "struct",
    "array": "array",
    "any": None,
}
_OUTPUT_TYPES = {
    "input_tokens": "integer",
    "output_tokens": "integer",
    "attempts": "integer",
    "latency_seconds": "double",
    "mean_logprob": "double",
}


@dataclass(frozen=True)
class Column:
    """A column of a dataset.

    Attributes:
        name: Its name.
        type: Its type; `None` if the spec does not tell it.
        fields: Columns of a struct.
    """

    name: str
    type: str | None = None
    fields: tuple[Column, ...] = ()


def source_columns(spec: JobSpec) -> tuple[Column, ...]:
    """Returns the columns of the source that the job is known to read: of key, passthrough and prompt."""
    names = dict.fromkeys((*spec.source.key, *getattr(spec.sink, "passthrough", ()), *prompt_columns(spec)))
    return tuple(map(Column, names))


def prompt_columns(spec: JobSpec) -> tuple[str, ...]:
    """Returns the columns of the source that the templates of the prompt name."""
    prompt = spec.prompt
    texts = (prompt.template, prompt.system or "", *(media.uri for media in prompt.media))
    return tuple(dict.fromkeys(name for text in texts for name in row_columns(text)))


def sink_columns(spec: JobSpec) -> tuple[Column, ...]:
    """Returns the columns of an output row."""
    key = tuple(map(Column, spec.source.key))
    if isinstance(spec.sink, MilvusSink):
        after = (Column(name, "string") for name in ("model", "fingerprint"))
        return (Column("llmbeam_id", "string"), *key, *answer_columns(spec), *after)
    passthrough = tuple(map(Column, getattr(spec.sink, "passthrough", ())))
    names = (*OUTPUT_COLUMNS[1:], *spec.extra_columns)
    others = tuple(Column(name, _OUTPUT_TYPES.get(name, "string")) for name in names)
    return (*key, *passthrough, *answer_columns(spec), *others)


def answer_columns(spec: JobSpec) -> tuple[Column, ...]:
    """Returns the columns that hold the answer: one, or with `sink.answer_columns` 'flat' one per field."""
    if spec.embedding is not None:
        return (Column("vector" if isinstance(spec.sink, MilvusSink) else "answer", "array<double>"),)
    if spec.prompt.output_schema is None:
        return (Column("answer", "string"),)
    answer, form = answer_type(spec.prompt.output_schema), getattr(spec.sink, "answer_columns", "json")
    if form == "json":
        return (Column("answer", "json"),)
    fields = tuple(_column(name, field) for name, field in answer.fields)
    return fields if form == "flat" else (_column("answer", answer),)


def _column(name: str, answer: AnswerType) -> Column:
    if answer.kind == "array" and answer.item is not None and answer.item.kind != "object":
        inner = _TYPES[answer.item.kind]
        return Column(name, f"array<{inner}>" if inner else "array")
    inside = answer.item if answer.kind == "array" and answer.item is not None else answer
    return Column(name, _TYPES[answer.kind], tuple(_column(field, type_) for field, type_ in inside.fields))
