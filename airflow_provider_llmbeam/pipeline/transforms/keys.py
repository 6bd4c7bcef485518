"""Rows that have one key: found before anything is paid for."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.elements import FAILED, Row, failed_row
from airflow_provider_llmbeam.pipeline.records import encode_key, encode_record
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.spec.source import Source

#: The keys of a billion rows, in so many parts, are 400 MB at a time.
_PARTITIONS = 256
#: Keys move in blocks of about this size: one by one they cost 10 µs each, in blocks 3 µs.
_BLOCK_BYTES = 64 * 2**10
#: Offenders that an error names.
_NAMED = 5


def unique(
    rows: beam.PCollection, source: Source
) -> tuple[beam.PCollection, beam.pvalue.AsList | None, list[beam.PCollection]]:
    """Applies `on_duplicate_key`.

    Returns:
        The rows to answer; the duplicate keys, where they end the job; and the rows for the dead letter, in no or
        one collection.
    """
    match source.on_duplicate_key:
        case "error":
            return rows, beam.pvalue.AsList(rows | "DuplicateKeys" >> DuplicateKeys(source.key)), []
        case "dead_letter":
            by_key = rows | "KeyOf" >> beam.Map(lambda row: (encode_key(row, source.key), row))
            picked = (
                by_key | "ByKey" >> beam.GroupByKey() | beam.ParDo(PickOne()).with_outputs(FAILED, main="rows")
            )
            return picked["rows"], None, [picked[FAILED]]
        case "allow":
            return rows, None, []


class DuplicateKeys(beam.PTransform):
    """Finds the keys that several rows have, as JSON lines."""

    def __init__(self, key: tuple[str, ...]) -> None:
        super().__init__()
        self._key = key

    def expand(self, rows: beam.PCollection) -> beam.PCollection:
        """Brings equal keys together; no row moves."""
        return (
            rows
            | "Pack" >> beam.ParDo(_PackKeys(self._key))
            | "ByPart" >> beam.GroupByKey()
            | "Find" >> beam.FlatMapTuple(lambda _, blocks: seen_again(blocks))
        )


class _PackKeys(beam.DoFn):
    def __init__(self, key: tuple[str, ...]) -> None:
        self._key = key

    def start_bundle(self) -> None:
        self._parts: dict[int, bytearray] = {}

    def process(self, row: Row) -> Iterator[tuple[int, bytes]]:
        line = encode_key(row, self._key)
        part = zlib.crc32(line) % _PARTITIONS
        block = self._parts.setdefault(part, bytearray())
        block += line
        if len(block) > _BLOCK_BYTES:
            yield part, bytes(self._parts.pop(part))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for part, block in self._parts.items():
            yield GlobalWindows.windowed_value((part, bytes(block)))


def seen_again(blocks: Iterable[bytes]) -> list[bytes]:
    """Lists the lines that occur more than once, each once."""
    seen: set[bytes] = set()
    again: dict[bytes, None] = {}
    for block in blocks:
        for line in block.splitlines():
            if line in seen:
                again[line] = None
            seen.add(line)
    return list(again)


def refuse_duplicates(duplicates: list[bytes]) -> None:
    """Stops a job whose rows have no key of their own.

    Raises:
        JobSpecError: Names the first of them.
    """
    if duplicates:
        named = ", ".join(line.decode("utf-8", "replace") for line in sorted(duplicates)[:_NAMED])
        more = f", and {len(duplicates) - _NAMED} more" if len(duplicates) > _NAMED else ""
        raise JobSpecError(
            f"`source.key`: {len(duplicates)} keys belong to several rows each: {named}{more}. Name columns that "
            "tell the rows apart, or set `source.on_duplicate_key`. Nothing was sent or billed."
        )


class PickOne(CountingDoFn):
    """Takes all rows of one key; lets the same one pass in every run, the others go to `dead`."""

    def process(self, group: tuple[bytes, Iterable[Row]]) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        """Splits one group."""
        key, rows = group
        first, *others = sorted(rows, key=encode_record)
        yield first
        for row in others:
            self.count("died")
            message = f"another row has the key {key.decode('utf-8', 'replace').strip()}"
            yield beam.pvalue.TaggedOutput(FAILED, failed_row(row, "duplicate_key", message))
