"""Steps that check answers for their sink, and write rows to files, which `publish` moves to their names."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import IO

import apache_beam as beam
import pyarrow as pa

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import FAILED, AnsweredRow, FailedRow, Row, refused_row
from airflow_provider_llmbeam.pipeline.records import answer_record, answer_value, encode_record, failed_record
from airflow_provider_llmbeam.pipeline.sinks.bigquery import sql_type
from airflow_provider_llmbeam.pipeline.sinks.files import shard_of, write_file
from airflow_provider_llmbeam.pipeline.sinks.parquet import doubtful_types, fits
from airflow_provider_llmbeam.pipeline.transforms.line_blocks import ToLineBlocks
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.sink import BigQuerySink

_NO_COLUMNS = OutputColumns(())


def separate_misfits(
    answered: Sequence[beam.PCollection], spec: JobSpec
) -> tuple[Sequence[beam.PCollection], list[beam.PCollection]]:
    """Separates answers that the columns of a BigQuery table do not hold.

    A column of a file is JSON text where a value does not fit, but a table keeps its types.

    Args:
        answered: `AnsweredRow`s.
        spec: The job.

    Returns:
        The answers that fit, and `FailedRow`s.
    """
    columns = OutputColumns.of(spec)
    types = {name: kind for name, kind in doubtful_types(columns).items() if not pa.types.is_string(kind)}
    if not types or not isinstance(spec.sink, BigQuerySink):
        return answered, []
    found = [
        rows
        | f"FitAnswers{number}" >> beam.ParDo(_FitAnswers(columns, types)).with_outputs(FAILED, main="fitting")
        for number, rows in enumerate(answered)
    ]
    return [each["fitting"] for each in found], [each[FAILED] for each in found]


class WriteStaged(beam.PTransform):
    """Writes rows to at most `shards` files in the staging directory and outputs `(shard, uri)`.

    Args:
        staging_uri: Directory, ends in `/`.
        prefix: Prefix of the file names.
        file_format: `jsonl` or `parquet`.
        shards: Number of files. The key of a row determines its file.
        columns: Columns of the answers; in Parquet the types of those from the source are derived from the data.
        is_private: Whether nobody but the owner can read a local file, also when it is published.
        keeps_rows: Whether the rows of the answers are written to a file beside each, see `rows_uri`.
    """

    def __init__(
        self,
        staging_uri: str,
        prefix: str,
        *,
        file_format: str,
        shards: int = 1,
        columns: OutputColumns = _NO_COLUMNS,
        is_private: bool = False,
        keeps_rows: bool = False,
    ) -> None:
        super().__init__()
        self._shards = shards
        self._columns = columns
        self._keeps_rows = keeps_rows
        self._write = _WriteShard(staging_uri, prefix, file_format, columns, is_private, keeps_rows)

    def expand(self, branches: tuple[beam.PCollection, ...]) -> beam.PCollection:
        """Encodes the rows of each branch, so that only blocks of lines are shuffled; then writes each shard."""
        encode = partial(_shard_and_lines, self._columns, self._shards, self._keeps_rows)
        blocks = [
            rows | f"Encode{number}" >> beam.ParDo(ToLineBlocks(encode)) for number, rows in enumerate(branches)
        ]
        (first, *others) = blocks
        every = blocks | beam.Flatten() if others else first
        return every | beam.GroupByKey() | beam.ParDo(self._write)


def rows_uri(answers_uri: str) -> str:
    """Returns the address of the rows of a staged file of answers, as records of the dead letter in its order."""
    return f"{answers_uri}.rows"


def _shard_and_lines(
    columns: OutputColumns, shards: int, keeps_rows: bool, found: AnsweredRow | FailedRow
) -> tuple[int, bytes]:
    if isinstance(found, FailedRow):
        return 0, encode_record(failed_record(found))
    line = encode_record(answer_record(found, columns))
    if keeps_rows:
        failure = Failure(kind="not_stored", message="", attempts=found.completion.attempts)
        line += encode_record(failed_record(FailedRow(found.masked_row or found.row, failure, found.origin)))
    return shard_of(found.row, columns.key, shards), line


class _WriteShard(beam.DoFn):
    def __init__(
        self,
        staging_uri: str,
        prefix: str,
        file_format: str,
        columns: OutputColumns,
        is_private: bool,
        keeps_rows: bool,
    ) -> None:
        self._staging_uri = staging_uri
        self._prefix = prefix
        self._file_format = file_format
        self._columns = columns
        self._is_private = is_private
        self._keeps_rows = keeps_rows

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, str]]:
        shard, blocks = element
        lines: Iterator[bytes] = (line for block in blocks for line in block.splitlines(keepends=True))
        uri = f"{self._staging_uri}{self._prefix}-{shard}-{uuid.uuid4().hex}.{self._file_format}"
        with ExitStack() as until_end:
            if self._keeps_rows:
                lines = _answers_of(lines, until_end.enter_context(storage.create(rows_uri(uri), is_private=True)))
            write_file(uri, lines, self._file_format, self._columns, is_private=self._is_private)
        yield shard, uri


def _answers_of(lines: Iterator[bytes], rows: IO[bytes]) -> Iterator[bytes]:
    """Yields the lines of answers, and writes the line of the row that follows each to a file."""
    for answer in lines:
        yield answer
        rows.write(next(lines))


class _FitAnswers(beam.DoFn):
    """Outputs answers with a value that is none of the type of its column as `failed`."""

    def __init__(self, columns: OutputColumns, types: Mapping[str, pa.DataType]) -> None:
        super().__init__()
        self._columns, self._types = columns, types

    def process(self, answered: AnsweredRow) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        answer, record = answered.completion, Row()
        self._columns.add_answer(record, answer_value(answer, has_schema=self._columns.answer is not None))
        for name, kind in self._types.items():
            if not fits(record[name], kind):
                failure = Failure(
                    kind="invalid_output",
                    message=(
                        f"the answer does not fit into column {name!r} of type {sql_type(kind)}. It stays in the "
                        "journal and is not paid again; `sink.answer_columns` 'json' stores it as text: "
                        f"{answer.text[:500]}"
                    ),
                    http_status=200,
                    answered_at=answer.answered_at,
                )
                yield beam.pvalue.TaggedOutput(FAILED, refused_row(answered, failure))
                return
        yield answered
