"""Duplicate keys, which are found before any request is sent."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import partial

import apache_beam as beam

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, Row, failed_row
from airflow_provider_llmbeam.pipeline.records import encode_equal_key, encode_record
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.transforms.line_blocks import ToLineBlocks
from airflow_provider_llmbeam.spec.source import Source

#: Number of partitions of the keys: those of a billion rows are 400 MB per partition.
_PARTITIONS = 256
#: Maximum number of keys that an error quotes.
_NAMED = 5


def unique(
    rows: beam.PCollection, source: Source, context: RunContext = NO_RUN
) -> tuple[beam.PCollection, beam.pvalue.AsList | None, list[beam.PCollection]]:
    """Applies `on_duplicate_key`.

    Args:
        rows: The rows.
        source: Their source.
        context: The run.

    Returns:
        The rows to answer; the duplicate keys, if they fail the job; and the rows for the dead letter, in zero or
        one collections.
    """
    match source.on_duplicate_key:
        case "error":
            return rows, beam.pvalue.AsList(rows | "DuplicateKeys" >> DuplicateKeys(source.key)), []
        case "dead_letter":
            by_key = rows | "KeyOf" >> beam.Map(lambda row: (encode_equal_key(row, source.key), row))
            pick = beam.ParDo(PickOne(context)).with_outputs(FAILED, main="rows")
            picked = by_key | "ByKey" >> beam.GroupByKey() | pick
            return picked["rows"], None, [picked[FAILED]]
        case "allow":
            return rows, None, []


class DuplicateKeys(beam.PTransform):
    """Finds keys that several rows have, as JSON lines."""

    def __init__(self, key: tuple[str, ...]) -> None:
        super().__init__()
        self._key = key

    def expand(self, rows: beam.PCollection) -> beam.PCollection:
        """Groups equal keys, without the rows."""
        return (
            rows
            | "Pack" >> beam.ParDo(ToLineBlocks(partial(key_line, self._key)))
            | "ByPart" >> beam.GroupByKey()
            | "Find" >> beam.FlatMapTuple(lambda _, blocks: repeated_lines(blocks))
        )


def key_line(key: tuple[str, ...], row: Row) -> tuple[int, bytes]:
    """Returns the partition of the key of a row, and the key as a JSON line."""
    line = encode_equal_key(row, key)
    return zlib.crc32(line) % _PARTITIONS, line


def repeated_lines(blocks: Iterable[bytes]) -> list[bytes]:
    """Returns the lines that occur more than once, each once."""
    seen: set[bytes] = set()
    repeated: dict[bytes, None] = {}
    for block in blocks:
        for line in block.splitlines():
            if line in seen:
                repeated[line] = None
            seen.add(line)
    return list(repeated)


def refuse_duplicates(duplicates: list[bytes]) -> None:
    """Fails a job with duplicate keys.

    Raises:
        JobSpecError: There are duplicate keys; the message quotes the first ones.
    """
    if duplicates:
        named = ", ".join(line.decode("utf-8", "replace") for line in sorted(duplicates)[:_NAMED])
        more = f", and {len(duplicates) - _NAMED} more" if len(duplicates) > _NAMED else ""
        count = len(duplicates)
        belong = "1 key belongs to several rows" if count == 1 else f"{count} keys belong to several rows each"
        raise JobSpecError(
            f"`source.key`: {belong}: {named}{more}. Name columns that tell the rows apart, or set "
            "`source.on_duplicate_key`."
        )


class PickOne(CountingDoFn):
    """Selects one of the rows of a key, the same in every run; the others are output as `failed`."""

    def process(self, group: tuple[bytes, Iterable[Row]]) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        """Processes the rows of one key."""
        key, rows = group
        first, *others = sorted(rows, key=encode_record)
        yield first
        for row in others:
            self.count("failed")
            message = f"another row has the key {key.decode('utf-8', 'replace').strip()}"
            yield beam.pvalue.TaggedOutput(FAILED, failed_row(row, "duplicate_key", message))
