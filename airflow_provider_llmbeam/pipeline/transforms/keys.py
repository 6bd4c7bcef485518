"""Duplicate keys, which are found before any request is sent."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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

#: Number of partitions of the keys: those of a billion rows are 600 MB per partition.
_PARTITIONS = 256
#: Length of the digest that tells rows with one key apart, in bytes.
_DIGEST = 8
#: Tags of the keys of rows that are equal, and of these rows.
_EQUAL_KEYS, _EQUAL = "equal_keys", "equal"
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
        The rows to answer; the keys of rows that differ, if they fail the job; and, in zero or one collections,
        the rows for the dead letter, and `Tally`s of those that are skipped.
    """

    def pick_one(some: beam.PCollection, policy: Literal["first", "last", "dead_letter"]) -> beam.PCollection:
        by_key = some | "KeyOf" >> beam.Map(lambda row: (encode_equal_key(row, source.key), row))
        pick = beam.ParDo(PickOne(policy, context)).with_outputs(FAILED, TALLIES, main="rows")
        return by_key | "ByKey" >> beam.GroupByKey() | pick

    match source.on_duplicate_key:
        case "error":
            found = rows | "DuplicateKeys" >> DuplicateKeys(source.key)
            equal_keys = beam.pvalue.AsDict(found[_EQUAL_KEYS])
            set_aside = beam.ParDo(_SetAside(source.key), equal_keys).with_outputs(_EQUAL, main="rows")
            single = rows | "SetAside" >> set_aside
            picked = pick_one(single[_EQUAL], "dead_letter")
            every = (single["rows"], picked["rows"]) | "SingleRows" >> beam.Flatten()
            return every, beam.pvalue.AsList(found["duplicates"]), [], [picked[TALLIES]]
        case "first" | "last" | "dead_letter" as policy:
            picked = pick_one(rows, policy)
            return picked["rows"], None, [picked[FAILED]], [picked[TALLIES]]
        case "allow":
            return rows, None, [], []


class DuplicateKeys(beam.PTransform):
    """Finds keys that several rows have, as JSON: `duplicates` if the rows differ, else `equal_keys`."""

    def __init__(self, key: tuple[str, ...]) -> None:
        super().__init__()
        self._key = key

    def expand(self, rows: beam.PCollection) -> beam.PCollection:
        """Groups equal keys, without the rows."""
        return (
            rows
            | "Pack" >> beam.ParDo(ToLineBlocks(partial(key_line, self._key)))
            | "ByPart" >> beam.GroupByKey()
            | "Find" >> beam.ParDo(_FindDuplicates()).with_outputs(_EQUAL_KEYS, main="duplicates")
        )


def key_line(key: tuple[str, ...], row: Row) -> tuple[int, bytes]:
    """Returns the partition of the key of a row, and a line with the key as JSON and a digest of the row."""
    encoded = encode_equal_key(row, key)
    return zlib.crc32(encoded) % _PARTITIONS, b"%s\t%s\n" % (encoded[:-1], row_digest(row).hex().encode())


def row_digest(row: Row) -> bytes:
    """Returns a digest of the columns of a row."""
    return hashlib.blake2b(encode_record(row), digest_size=_DIGEST).digest()


def repeated_keys(blocks: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Returns the keys of lines of which several differ, and those of lines that are all equal but several."""
    seen: dict[bytes, int] = {}
    differing: dict[bytes, None] = {}
    equal: dict[bytes, None] = {}
    for block in blocks:
        for line in block.splitlines():
            key, _, digest = line.rpartition(b"\t")
            found = int(digest, 16)
            if (first := seen.get(key)) is None:
                seen[key] = found
            else:
                (equal if first == found else differing)[key] = None
    return [*differing], [key for key in equal if key not in differing]


class _FindDuplicates(beam.DoFn):
    def process(self, part: tuple[int, Iterable[bytes]]) -> Iterator[bytes | beam.pvalue.TaggedOutput]:
        differing, equal = repeated_keys(part[1])
        yield from differing
        for key in equal:
            yield beam.pvalue.TaggedOutput(_EQUAL_KEYS, (key, True))


class _SetAside(beam.DoFn):
    """Outputs rows of which others are copies as `equal`."""

    def __init__(self, key: tuple[str, ...]) -> None:
        super().__init__()
        self._key = key

    def process(self, row: Row, equal_keys: Mapping[bytes, bool]) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        is_equal = equal_keys and encode_equal_key(row, self._key)[:-1] in equal_keys
        yield beam.pvalue.TaggedOutput(_EQUAL, row) if is_equal else row


def refuse_duplicates(duplicates: list[bytes]) -> None:
    """Fails a job with rows that differ and have one key.

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
        self._skipped: Counter[str] = Counter()

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
            self._skipped["identical" if self._policy == "dead_letter" else "duplicate_key"] += skipped
            self.count("duplicates", skipped)
        for row in failed:
            self.count("failed")
            message = f"another row has the key {key.decode('utf-8', 'replace').strip()}"
            yield beam.pvalue.TaggedOutput(FAILED, failed_row(row, "duplicate_key", message))

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        """Outputs the number of skipped rows."""
        super().finish_bundle()
        yield beam.pvalue.TaggedOutput(TALLIES, GlobalWindows.windowed_value(Tally(skipped=self._skipped)))
