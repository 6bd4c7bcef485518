"""Duplicate keys, which are found before any request is sent."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Literal

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, PLACE, Row, failed_row
from airflow_provider_llmbeam.pipeline.records import encode_equal_key, encode_record
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.reporting.tally import TALLIES, Tally
from airflow_provider_llmbeam.pipeline.transforms.line_blocks import ToLineBlocks
from airflow_provider_llmbeam.spec.source import Source

#: Number of partitions of the keys: those of a billion rows are 400 MB per partition.
_PARTITIONS = 256
#: Maximum number of keys that an error quotes.
_NAMED = 5


def unique(
    rows: beam.PCollection, source: Source, context: RunContext = NO_RUN
) -> tuple[beam.PCollection, beam.pvalue.AsList | None, list[beam.PCollection], list[beam.PCollection]]:
    """Applies `on_duplicate_key`.

    Args:
        rows: The rows.
        source: Their source.
        context: The run.

    Returns:
        The rows to answer; the duplicate keys, if they fail the job; and, in zero or one collections, the rows for
        the dead letter, and `Tally`s of those that are skipped.
    """
    match source.on_duplicate_key:
        case "error":
            return rows, beam.pvalue.AsList(rows | "DuplicateKeys" >> DuplicateKeys(source.key)), [], []
        case "first" | "last" | "dead_letter" as policy:
            by_key = rows | "KeyOf" >> beam.Map(lambda row: (encode_equal_key(row, source.key), row))
            pick = beam.ParDo(PickOne(policy, context)).with_outputs(FAILED, TALLIES, main="rows")
            picked = by_key | "ByKey" >> beam.GroupByKey() | pick
            return picked["rows"], None, [picked[FAILED]], [picked[TALLIES]]
        case "allow":
            return rows, None, [], []


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
            "`source.on_duplicate_key` to 'first', 'last', 'dead_letter' or 'allow'."
        )


class PickOne(CountingDoFn):
    """Selects one of the rows of a key, the same in every run.

    The others are output as `failed` with the policy `dead_letter`, unless they are equal; else they are skipped,
    and counted in `tallies`.

    Args:
        policy: `first`, `last` or `dead_letter`.
        context: The run.
    """

    def __init__(self, policy: Literal["first", "last", "dead_letter"], context: RunContext = NO_RUN) -> None:
        super().__init__(context)
        self._policy = policy

    def start_bundle(self) -> None:
        """Resets the number of skipped rows."""
        super().start_bundle()
        self._skipped = 0

    def process(self, group: tuple[bytes, Iterable[Row]]) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        """Processes the rows of one key."""
        key, rows = group
        if self._policy == "dead_letter":
            records = [(encode_record(row), row) for row in rows]
            different = dict(records)
            first, *failed = (different[record] for record in sorted(different))
            skipped = len(records) - len(different)
        else:
            first, *others = sorted(rows, key=itemgetter(PLACE), reverse=self._policy == "last")
            first = {name: value for name, value in first.items() if name != PLACE}
            failed, skipped = [], len(others)
        yield first
        if skipped:
            self._skipped += skipped
            self.count("duplicates", skipped)
        for row in failed:
            self.count("failed")
            message = f"another row has the key {key.decode('utf-8', 'replace').strip()}"
            yield beam.pvalue.TaggedOutput(FAILED, failed_row(row, "duplicate_key", message))

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        """Outputs the number of skipped rows."""
        super().finish_bundle()
        yield beam.pvalue.TaggedOutput(TALLIES, GlobalWindows.windowed_value(Tally(skipped=self._skipped)))
