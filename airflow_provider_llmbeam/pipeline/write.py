"""Rows out: written aside under names of their own, moved in when the job is complete."""

from __future__ import annotations

import json
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from airflow_provider_llmbeam.exceptions import RowsLostError
from airflow_provider_llmbeam.pipeline.account import Tally
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, DeadRow, Row
from airflow_provider_llmbeam.pipeline.report import build_report
from airflow_provider_llmbeam.spec.job import JobSpec

#: Rows per Parquet row group.
_ROW_GROUP = 10_000
_OUTPUT_TYPES = {
    "answer": pa.string(),
    "origin": pa.string(),
    "model": pa.string(),
    "fingerprint": pa.string(),
    "finish_reason": pa.string(),
    "input_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "attempts": pa.int64(),
    "latency_seconds": pa.float64(),
}


def answer_record(answered: AnsweredRow, key: tuple[str, ...]) -> Row:
    """The output row: the key, the answer, and what an audit asks for."""
    completion = answered.completion
    return {
        **{column: answered.row[column] for column in key},
        "answer": completion.text if completion.parsed is None else completion.parsed,
        "origin": answered.origin,
        "model": completion.model,
        "fingerprint": answered.fingerprint,
        "finish_reason": completion.finish_reason,
        "input_tokens": completion.input_tokens,
        "output_tokens": completion.output_tokens,
        "attempts": completion.attempts,
        "latency_seconds": round(completion.latency_seconds, 4),
    }


def dead_record(dead: DeadRow) -> Row:
    """The row as it came in, so that a source can read it again, and why it failed."""
    failure = dead.failure
    return {
        **dead.row,
        "llmbeam_error": {
            "kind": failure.kind,
            "message": failure.message,
            "http_status": failure.http_status,
            "attempts": failure.attempts,
        },
    }


class WriteAside(beam.PTransform):
    """Writes records to `shards` files in the staging directory and outputs `(shard, uri)`.

    Every shard is written, also an empty one: a run without rows has an empty answer file, not none.

    Args:
        staging_uri: Directory, ends in `/`.
        prefix: Of the file names.
        file_format: `jsonl` or `parquet`.
        shards: Number of files.
        key: Columns whose types Parquet takes from the data.
    """

    def __init__(
        self, staging_uri: str, prefix: str, *, file_format: str, shards: int = 1, key: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self._write = _WriteShard(staging_uri, prefix, file_format, key)
        self._shards = shards

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        """Groups by shard and writes each."""
        shards = self._shards
        every_shard = records.pipeline | beam.Create([(shard, b"") for shard in range(shards)])
        encoded = records | beam.Map(encode_record) | beam.Map(lambda line: (zlib.crc32(line) % shards, line))
        return (encoded, every_shard) | beam.Flatten() | beam.GroupByKey() | beam.ParDo(self._write)


def encode_record(record: Row) -> bytes:
    """One JSON line; what JSON has no type for (dates, decimals) becomes text."""
    text = json.dumps(record, ensure_ascii=False, default=str)
    return text.encode("utf-8", "surrogatepass") + b"\n"


class _WriteShard(beam.DoFn):
    def __init__(self, staging_uri: str, prefix: str, file_format: str, key: tuple[str, ...]) -> None:
        self._staging_uri = staging_uri
        self._prefix = prefix
        self._file_format = file_format
        self._key = key

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, str]]:
        shard, lines = element
        uri = f"{self._staging_uri}{self._prefix}-{shard}-{uuid.uuid4().hex}.{self._file_format}"
        rows = (line for line in lines if line)
        with FileSystems.create(uri, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            if self._file_format == "parquet":
                write_parquet(rows, file, self._key)
            else:
                file.writelines(rows)
        yield shard, uri


def write_parquet(lines: Iterable[bytes], file: IO[bytes], key: tuple[str, ...]) -> None:
    """Writes records to Parquet. A key column is integer, number or boolean where every value is, else text."""
    with tempfile.TemporaryFile() as spool:
        seen: dict[str, set[type]] = {column: set() for column in key}
        for line in lines:
            record = json.loads(line)
            for column in key:
                seen[column].add(_kind(record[column]))
            spool.write(line)
        spool.seek(0)
        schema = pa.schema([*((column, _arrow_type(seen[column])) for column in key), *_OUTPUT_TYPES.items()])
        with pq.ParquetWriter(file, schema) as writer:
            while rows := [_flat(json.loads(line), schema) for line in _take(spool, _ROW_GROUP)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))


class _Long(int):
    """Of 54 to 64 bits."""


def _kind(value: Any) -> type:
    # Beyond 2**53 a float loses it, beyond 2**63 a column does: such numbers are text.
    if type(value) is not int or abs(value) <= 2**53:
        return type(value)
    return _Long if -(2**63) <= value < 2**63 else str


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _arrow_type(types: set[type]) -> pa.DataType:
    if types == {bool}:
        return pa.bool_()
    if types and types <= {int, _Long}:
        return pa.int64()
    if types and types <= {int, float}:
        return pa.float64()
    return pa.string()


def _flat(record: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Turns what is not text into JSON text where the column is text."""
    return {
        name: _text(value) if pa.types.is_string(schema.field(name).type) else value
        for name, value in record.items()
    }


def _take(lines: IO[bytes], count: int) -> Iterator[bytes]:
    for _, line in zip(range(count), lines, strict=False):
        yield line


class Publish(beam.DoFn):
    """Checks the sums, then moves everything in; the report last.

    Raises:
        RowsLostError: Rows in is not answered + dead letter. Nothing was moved.
    """

    def __init__(self, spec: JobSpec, staging_uri: str, started_at: float) -> None:
        self._spec = spec
        self._staging_uri = staging_uri
        self._started_at = started_at

    def process(
        self,
        _: None,
        rows_read: int,
        tally: Tally,
        answer_files: Iterable[tuple[int, str]],
        dead_files: Iterable[tuple[int, str]],
    ) -> Iterator[str]:
        """Publishes the one result of the job."""
        check_sums(rows_read, tally)
        sink = self._spec.sink
        answers = {
            uri: f"{sink.uri}answers-{shard:05}-of-{sink.shards:05}.{sink.format}"
            for shard, uri in sorted(answer_files)
        }
        dead = {uri: f"{sink.uri}dead_letter-00000-of-00001.jsonl" for _, uri in dead_files}
        outdated = _existing(sink.uri, ("answers-*", "dead_letter-*")) - {*answers.values(), *dead.values()}
        move_in({**answers, **dead})
        report = build_report(
            self._spec,
            rows_read=rows_read,
            tally=tally,
            answers_uris=list(answers.values()),
            dead_letter_uri=next(iter(dead.values())),
            report_uri=f"{sink.uri}report.json",
            started_at=self._started_at,
            finished_at=time.time(),
        )
        text = report.model_dump_json(indent=2)
        aside = f"{self._staging_uri}report.json"
        with FileSystems.create(aside, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            file.write(text.encode())
        move_in({aside: report.report_uri})
        if leftovers := outdated | _existing(self._staging_uri, ("*",)):
            FileSystems.delete(sorted(leftovers))
        yield text


def move_in(files: Mapping[str, str]) -> None:
    """Renames staged files to their final names; one that a former try of the bundle has moved stays."""
    staged = [uri for uri in files if FileSystems.exists(uri)]
    FileSystems.rename(staged, [files[uri] for uri in staged])
    if missing := [final for final in files.values() if not FileSystems.exists(final)]:
        raise RowsLostError(f"{missing[0]!r} was written and is not there. A retry asks the model for nothing.")


def check_sums(rows_read: int, tally: Tally) -> None:
    """Makes sure that no row is lost.

    Raises:
        RowsLostError: Says by how many.
    """
    answered, dead = tally.answered.total(), tally.dead.total()
    if rows_read != answered + dead:
        raise RowsLostError(
            f"{rows_read} rows read, but {answered} answered + {dead} in the dead letter = {answered + dead}. "
            "The previous output was kept; what was answered is in the journal."
        )


def _existing(directory: str, patterns: Iterable[str]) -> set[str]:
    matches = FileSystems.match([f"{directory}{pattern}" for pattern in patterns])
    return {metadata.path for match in matches for metadata in match.metadata_list}
