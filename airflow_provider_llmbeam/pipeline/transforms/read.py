"""Steps that read the rows and check their keys."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from airflow_provider_llmbeam.pipeline.columns import used_columns
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, FailedRow, Row, failed_row
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.sources import bigquery, files, kafka, pubsub
from airflow_provider_llmbeam.pipeline.transforms.select import selection
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.output_rules import reads_own_dead_letter
from airflow_provider_llmbeam.spec.nesting import MAX_DEPTH, depth_exceeds
from airflow_provider_llmbeam.spec.plain_values import plain_row
from airflow_provider_llmbeam.spec.source import BigQuerySource, FilesSource, KafkaSource, PubSubSource, RowsSource

#: Tag of the output with one `Tally` for each bundle.
TALLIES = "tallies"

_NESTED = frozenset({dict, list})


class ReadRows(beam.PTransform):
    """Reads the source.

    Outputs `rows`, `failed` for invalid lines and rows without a key, and `tallies` with the number of both.

    Args:
        spec: The job.
        context: Its run.

    Raises:
        JobSpecError: The source does not exist.
    """

    def __init__(self, spec: JobSpec, context: RunContext = NO_RUN) -> None:
        super().__init__()
        self._spec = spec
        self._context = context

    def expand(self, root: beam.Pipeline) -> beam.pvalue.DoOutputsTuple:
        """Adds the reader of the source to the graph."""
        source = self._spec.source
        match source:
            case FilesSource():
                found = files.read(root, source, used_columns(self._spec))
            case BigQuerySource():
                found = bigquery.read(root, source, self._spec.paths.export_uri)
            case KafkaSource():
                found = kafka.read(root, self._spec, source)
            case PubSubSource():
                found = pubsub.read(root, self._spec, source)
            case RowsSource():
                found = root | beam.Create([dict(row) for row in source.rows])
        if (is_selected := selection(source, is_own_dead_letter=reads_own_dead_letter(self._spec))) is not None:
            found |= "Select" >> beam.Filter(is_selected)
        check = _CheckKey(source.key, self._context)
        return found | "CheckKey" >> beam.ParDo(check).with_outputs(FAILED, TALLIES, main="rows")


class _CheckKey(CountingDoFn):
    def __init__(self, key: tuple[str, ...], context: RunContext = NO_RUN) -> None:
        super().__init__(context)
        self._key = key
        self._rows = 0

    def start_bundle(self) -> None:
        super().start_bundle()
        self._rows = 0

    def process(self, row: Row | FailedRow) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        self._rows += 1
        self.count("rows")
        row = with_key(row, self._key)
        if isinstance(row, FailedRow):
            self.count("failed")
            yield beam.pvalue.TaggedOutput(FAILED, row)
        else:
            yield row

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        super().finish_bundle()
        yield beam.pvalue.TaggedOutput(TALLIES, GlobalWindows.windowed_value(Tally(read=self._rows)))


def with_key(row: Row | FailedRow, key: tuple[str, ...]) -> Row | FailedRow:
    """Returns the row, with plain values, if it has one in each key column, else a failed row.

    A row that is nested too deep fails as well.
    """
    if isinstance(row, FailedRow):
        return row
    if not _NESTED.isdisjoint(map(type, row.values())) and depth_exceeds(row):
        message = f"nested more than {MAX_DEPTH} levels deep; it has {sorted(row)}"
        return failed_row({"llmbeam_raw": _text(row)}, "unreadable_row", message)
    plain = plain_row(row)
    for column in key:
        value = row.get(column)
        if value is None:
            return failed_row(row, "missing_key", f"no value in key column {column!r}; the row has {sorted(row)}")
        if not isinstance(value, str) and (plain[column] is None or not _is_key(value)):
            # NaN equals no other key, so no sink could find its row again, and JSON has no such numbers.
            return failed_row(plain, "missing_key", f"no number in key column {column!r} but {value!r}")
    return plain


def _is_key(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, tuple)):
        return all(map(_is_key, value))
    return not isinstance(value, dict) or all(map(_is_key, value.values()))


def _text(row: Row) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):  # deeper than its encoder goes, or it contains itself
        return json.dumps({name: value for name, value in row.items() if not isinstance(value, (dict, list))})
