"""The check of the rows as a whole, before requests to the model: their number, and the columns passed through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from airflow_provider_llmbeam.exceptions import JobSpecError, SourceEmptyError
from airflow_provider_llmbeam.pipeline.columns import wanted_columns
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import (
    BigQuerySource,
    FilesSource,
    KafkaSource,
    PubSubSource,
    Source,
    SqlSource,
)

_MAX_NAMED = 10


@dataclass(frozen=True)
class RowFacts:
    """What is known of the rows of a source.

    Attributes:
        rows: Number of rows read.
        found: Columns of those looked for that a row has.
        columns: Columns of one of the rows.
    """

    rows: int = 0
    found: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()


def wait_for_row_check(
    branches: Iterable[beam.PCollection], rows: Iterable[beam.PCollection], spec: JobSpec
) -> list[beam.PCollection]:
    """Delays the branches until the rows are checked, if there is anything to check.

    Args:
        branches: What follows the check: requests, and rows with an answer.
        rows: All rows of the source.
        spec: The job.
    """
    wanted = wanted_columns(spec)
    if not wanted and spec.source.min_rows < 2:
        return list(branches)
    bundles = [
        part | f"RowFacts{number}" >> beam.ParDo(_CollectFacts(tuple(wanted))) for number, part in enumerate(rows)
    ]
    facts = bundles | "AllBundles" >> beam.Flatten() | "AllRowFacts" >> beam.CombineGlobally(add_up_facts)
    check = _Check(spec.source, wanted)
    return [
        branch
        | f"RowsAreChecked{number}"
        >> beam.ParDo(check, beam.pvalue.AsSingleton(facts)).with_output_types(branch.element_type)
        for number, branch in enumerate(branches)
    ]


def add_up_facts(parts: Iterable[RowFacts]) -> RowFacts:
    """Returns what is known of the rows of all parts."""
    total = RowFacts()
    for part in parts:
        total = RowFacts(total.rows + part.rows, total.found | part.found, total.columns or part.columns)
    return total


def check_facts(facts: RowFacts, source: Source, wanted: Mapping[str, str]) -> None:
    """Checks the rows.

    Args:
        facts: What is known of them.
        source: Their source.
        wanted: See `wanted_columns`.

    Raises:
        SourceEmptyError: There are fewer than `source.min_rows`.
        JobSpecError: No row has a wanted column.
    """
    check_count(facts.rows, source)
    missing = [column for column in wanted if column not in facts.found]
    if missing and facts.columns:
        close = get_close_matches(missing[0], facts.columns, 1)
        names = ", ".join(map(repr, facts.columns[:_MAX_NAMED]))
        hint = f"did you mean {close[0]!r}?" if close else f"a row has {names}."
        raise JobSpecError(f"`{wanted[missing[0]]}`: no row has column {missing[0]!r}; {hint}")


def check_count(rows: int, source: Source, skipped: int = 0) -> None:
    """Checks that a source has rows enough.

    Args:
        rows: Number of its rows that are not skipped.
        source: The source.
        skipped: Number of those that are.

    Raises:
        SourceEmptyError: It does not; the message says what to do.
    """
    if not rows and source.on_empty == "fail":
        none = "no rows"
        if skipped:
            columns = ", ".join(map(repr, source.skip_empty))
            none = f"{skipped:,} rows, and none has a value in `source.skip_empty`, {columns}"
        raise SourceEmptyError(
            f"{name_of(source)} has {none}, so the output was left as it is. If that is no mistake, set "
            "`source.on_empty` to 'skip', or to 'write' to publish no answers."
        )
    if 0 < rows < source.min_rows:
        raise SourceEmptyError(
            f"{name_of(source)} has {rows:,} rows, and `source.min_rows` is {source.min_rows:,}, so the output "
            "was left as it is."
        )


def name_of(source: Source) -> str:
    """Returns the field that names the source, and its value."""
    match source:
        case FilesSource():
            return f"`source.uri` {source.uri!r}"
        case BigQuerySource(table=str()):
            return f"`source.table` {source.table!r}"
        case BigQuerySource() | SqlSource():
            return "`source.query`"
        case KafkaSource():
            return f"`source.topic` {', '.join(map(repr, source.topic))}"
        case PubSubSource():
            return f"`source.subscription` {source.subscription!r}"
        case _:
            return "`source.rows`"


class _CollectFacts(beam.DoFn):
    def __init__(self, wanted: tuple[str, ...]) -> None:
        self._wanted = frozenset(wanted)

    def start_bundle(self) -> None:
        self._rows, self._missing = 0, set(self._wanted)
        self._columns: tuple[str, ...] = ()

    def process(self, row: Row | FailedRow) -> None:
        self._rows += 1
        if isinstance(row, FailedRow):
            return
        if self._missing:
            self._missing -= row.keys()
        if not self._columns:
            self._columns = tuple(row)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        facts = RowFacts(self._rows, self._wanted - self._missing, self._columns)
        yield GlobalWindows.windowed_value(facts)


class _Check(beam.DoFn):
    def __init__(self, source: Source, wanted: Mapping[str, str]) -> None:
        self._source = source
        self._wanted = wanted
        self._is_checked = False

    def process(self, element: object, facts: RowFacts) -> Iterator[object]:
        if not self._is_checked:
            check_facts(facts, self._source, self._wanted)
            self._is_checked = True
        yield element
