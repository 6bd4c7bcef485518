"""Rules on the output of a job: what it must not read, and names that its columns must not share."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError
from airflow_provider_llmbeam.spec.prompt.answer_type import answer_type
from airflow_provider_llmbeam.spec.sink import OUTPUT_COLUMNS, BigQuerySink, FilesSink, MilvusSink
from airflow_provider_llmbeam.spec.source import FilesSource, glob_pattern

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec

_MILVUS_FIELD = re.compile(r"(?!(vector|llmbeam_id)$)[A-Za-z_][A-Za-z0-9_]{0,254}$")


def output_fault(spec: JobSpec) -> ValueError | None:
    """Returns what is wrong with the output of a job, as the second half of a sentence; `None` if nothing is."""
    problem = _source_problem(spec) or _merge_problem(spec) or _form_problem(spec)
    return _columns_fault(spec) if problem is None else ValueError(problem)


def milvus_fault(spec: JobSpec) -> FieldFaultError | None:
    """Returns why a sink of type `milvus` cannot store the answers of a job, or `None`."""
    if not isinstance(spec.sink, MilvusSink):
        return None
    if spec.embedding is None and spec.sink.embed is None:
        return FieldFaultError(
            "task",
            "must be 'embed' with a sink of type 'milvus', which stores vectors; in a stream it may have `embed`",
            spec.task,
        )
    for field, columns in (("source.key", spec.source.key), ("sink.passthrough", spec.sink.passthrough)):
        if odd := [column for column in columns if not _MILVUS_FIELD.match(column)]:
            return FieldFaultError(
                field,
                f"has {odd}, which cannot be fields of a sink of type 'milvus': letters, digits and _ are "
                "allowed, and `vector` and `llmbeam_id` are taken",
                list(columns),
            )
    return None


def reads_own_dead_letter(spec: JobSpec) -> bool:
    """Returns whether the source of a job is, or contains, the dead letter that it will publish."""
    return isinstance(spec.source, FilesSource) and matches(spec.source.uri, spec.paths.dead_letter_uri)


def _source_problem(spec: JobSpec) -> str | None:
    if not isinstance(spec.source, FilesSource) or not isinstance(spec.sink, FilesSink):
        return None
    source, sink = spec.source, spec.sink
    written = (f"answers-00000-of-{sink.shards:05}.{sink.format}", "report.json")
    if any(matches(source.uri, f"{sink.uri}{name}") for name in written):
        return (
            f"would read its own answers: `source.uri` {source.uri!r} matches the files that the job writes to "
            f"`sink.uri` {sink.uri!r}. Name another directory for one of them"
        )
    if sink.on_existing != "merge" and reads_own_dead_letter(spec):
        return (
            f"reads the dead letter of its own `sink.uri` {sink.uri!r}, and would replace all answers there by "
            "the new ones: set `sink.on_existing` to 'merge', or name another sink"
        )
    return None


def _merge_problem(spec: JobSpec) -> str | None:
    if getattr(spec.sink, "on_existing", None) == "merge" and spec.source.on_duplicate_key == "allow":
        return (
            "allows duplicate keys (`source.on_duplicate_key`), and `sink.on_existing` 'merge' keeps one row per "
            "key: set one of them to another policy"
        )
    return None


def _form_problem(spec: JobSpec) -> str | None:
    if getattr(spec.sink, "answer_columns", None) == "flat":
        if spec.prompt.output_schema is None or spec.embedding is not None:
            return (
                "has `sink.answer_columns` 'flat', which needs a `prompt.output_schema`: set one, or leave it out"
            )
        found = answer_type(spec.prompt.output_schema)
        if found.kind != "object" or found.is_nullable:
            return (
                "has `sink.answer_columns` 'flat', which needs a `prompt.output_schema` of type 'object' with "
                "`properties`, and no `$ref`, `allOf`, `anyOf` or `oneOf` beside them: use 'struct' or 'json'"
            )
    return None


def _columns_fault(spec: JobSpec) -> FieldFaultError | None:
    """Returns which name two columns of an output row would have; `None` if each has its own."""
    fields, outputs = tuple[str, ...](), [OUTPUT_COLUMNS[0], *spec.detail_columns]
    schema = spec.prompt.output_schema
    if schema is not None and getattr(spec.sink, "answer_columns", None) == "flat":
        fields, outputs = tuple(name for name, _ in answer_type(schema).fields), outputs[1:]
    is_folded = isinstance(spec.sink, BigQuerySink)  # names of its columns differ by more than their case
    taken = {name.lower() if is_folded else name: "has a column of that name" for name in outputs}
    for field, names in (
        ("source.key", spec.source.key),
        ("prompt.output_schema", fields),
        ("sink.passthrough", spec.sink.passthrough),
    ):
        for name in names:
            own = name.lower() if is_folded else name
            if own in taken:
                fault = f"has column {name!r}, and every output row {taken[own]}: use another"
                return FieldFaultError(field, fault, NOT_SHOWN)
            taken[own] = f"has it from `{field}`"
    return None


def matches(pattern: str, path: str) -> bool:
    """Returns whether a path or glob of a source includes a file."""
    return glob_pattern(_absolute(pattern)).fullmatch(_absolute(path)) is not None


def _absolute(uri: str) -> str:
    return uri if "://" in uri and not uri.startswith("file://") else os.path.abspath(uri.removeprefix("file://"))  # noqa: PTH100 - follows no links
