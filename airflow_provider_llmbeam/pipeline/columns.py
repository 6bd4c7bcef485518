"""The columns of an output row."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.prompt.answer_type import AnswerType, answer_type
from airflow_provider_llmbeam.spec.prompt.names import row_columns, takes_whole_row
from airflow_provider_llmbeam.spec.sink import (
    OUTPUT_COLUMNS,
    AnswerColumns,
    BigQuerySink,
    FilesSink,
    PostgresSink,
    Sink,
)

_log = logging.getLogger(__name__)


def used_columns(spec: JobSpec) -> frozenset[str] | None:
    """Returns the columns of its source that a job uses; `None` if a template may use any."""
    return None if any(map(takes_whole_row, _templates(spec))) else named_columns(spec)


def named_columns(spec: JobSpec) -> frozenset[str]:
    """Returns the columns of its source that a job names, and that of the reason of a failure."""
    turns, of_templates = spec.conversation, chain.from_iterable(map(row_columns, _templates(spec)))
    named = [*of_templates, *wanted_columns(spec), *spec.source.key, *spec.source.skip_empty]
    if turns is not None:
        named += [*turns.key, *filter(None, [turns.order_by])]
    return frozenset((*named, "llmbeam_error"))


def _templates(spec: JobSpec) -> tuple[str, ...]:
    prompt, cascade = spec.prompt, spec.cascade
    further = () if cascade is None else cascade.templates
    return (prompt.template, prompt.system or "", *(media.uri for media in prompt.media), *further)


def wanted_columns(spec: JobSpec) -> dict[str, str]:
    """Returns the columns that a row must have if any row is sent, each with the field that names it."""
    privacy = spec.safety.privacy
    masked = privacy.columns if privacy is not None and privacy.columns is not None else ()
    passed = spec.sink.passthrough
    return dict.fromkeys(masked, "safety.privacy.columns") | dict.fromkeys(passed, "sink.passthrough")


@dataclass(frozen=True)
class OutputColumns:
    """The columns of an output row, in their order: key, passthrough, answer, and what is known of the answer.

    Attributes:
        key: Key columns.
        passthrough: Further columns of the source.
        answer_columns: Form of an answer with a schema.
        answer: Type of the answers by their schema; `None` for texts and vectors.
        has_vectors: Whether the answers are vectors.
        dimensions: Length of the vectors; `None` if the server chooses it.
        after_answer: Columns with what is known of the answer, see `spec.JobSpec.detail_columns`.
        for_bigquery: Whether they are loaded into BigQuery, which has fewer types than Parquet.
        keeps_bytes: Whether the sink may have columns of bytes, so that bytes are told from text.
        model: Name of the model that answers what no stage of a cascade does.
    """

    key: tuple[str, ...]
    passthrough: tuple[str, ...] = ()
    answer_columns: AnswerColumns = "struct"
    answer: AnswerType | None = None
    has_vectors: bool = False
    dimensions: int | None = None
    after_answer: tuple[str, ...] = OUTPUT_COLUMNS[1:]
    for_bigquery: bool = False
    keeps_bytes: bool = False
    model: str = ""

    @classmethod
    def of(cls, spec: JobSpec) -> OutputColumns:
        """Returns the columns of the output rows of a job."""
        schema, sink = spec.prompt.output_schema, spec.sink
        return cls(
            key=spec.source.key,
            passthrough=sink.passthrough,
            answer_columns=_answer_columns(sink),
            answer=None if schema is None or spec.embedding is not None else answer_type(schema),
            has_vectors=spec.embedding is not None,
            dimensions=None if spec.embedding is None else spec.embedding.dimensions,
            after_answer=spec.detail_columns,
            for_bigquery=isinstance(sink, BigQuerySink),
            keeps_bytes=isinstance(sink, BigQuerySink | PostgresSink),
            model="" if spec.cascade is None else spec.cascade.names(spec.model)[-1],
        )

    @property
    def from_source(self) -> tuple[str, ...]:
        """Columns whose values are those of the source."""
        return (*self.key, *self.passthrough)

    @property
    def fields(self) -> tuple[tuple[str, AnswerType], ...] | None:
        """Columns of a flat answer, by name; `None` if it is one column, `answer`."""
        return self.answer.fields if self.answer is not None and self.answer_columns == "flat" else None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Columns besides those of the source."""
        fields = self.fields
        answer = OUTPUT_COLUMNS[:1] if fields is None else tuple(name for name, _ in fields)
        return (*answer, *self.after_answer)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns."""
        return (*self.from_source, *self.outputs)

    def add_answer(self, record: Row, value: Any) -> None:
        """Adds the columns of an answer to a record: a text, a vector, or a value of the schema."""
        if self.answer is None or self.answer_columns == "struct":
            record["answer"] = value
        elif self.answer_columns == "json":
            record["answer"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        else:
            for name, _ in self.answer.fields:
                record[name] = value.get(name) if isinstance(value, dict) else None


def _answer_columns(sink: Sink) -> AnswerColumns:
    match sink:
        case FilesSink() | BigQuerySink() | PostgresSink(answer_columns="flat"):
            return sink.answer_columns
        case _:  # a message is JSON as a whole, and PostgreSQL has a type for it
            return "struct"


def absent_columns(names: Sequence[str]) -> str:
    """Returns what a table lacks, e.g. `no columns 'text', 'mood'`."""
    return f"no column{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def leave_out(wanted: Iterable[str], there: Collection[str], table: str) -> frozenset[str]:
    """Returns the details of an answer that a table of the author's own has no columns for; logs them.

    Args:
        wanted: Columns of an output row.
        there: Columns of the table.
        table: Name of the table.
    """
    names = [name for name in wanted if name in OUTPUT_COLUMNS[1:] and name not in there]
    if names:
        _log.info("Table %r has %s: left out.", table, absent_columns(names))
    return frozenset(names)
