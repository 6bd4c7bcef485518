"""Steps that read the rows and check their keys."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from airflow_provider_llmbeam.pipeline.elements import FAILED, FailedRow, Row, failed_row
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.sources import bigquery, files
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import BigQuerySource, FilesSource, RowsSource


class ReadRows(beam.PTransform):
    """Reads the source. Outputs `rows`, and `failed` for invalid lines and rows without a key.

    Raises:
        JobSpecError: The source does not exist.
    """

    def __init__(self, spec: JobSpec) -> None:
        super().__init__()
        self._spec = spec

    def expand(self, root: beam.Pipeline) -> beam.pvalue.DoOutputsTuple:
        """Adds the reader of the source to the graph."""
        source = self._spec.source
        match source:
            case FilesSource():
                found = files.read(root, source)
            case BigQuerySource():
                found = bigquery.read(root, source, self._spec.export_uri)
            case RowsSource():
                found = root | beam.Create([dict(row) for row in source.rows])
        return found | "CheckKey" >> beam.ParDo(_CheckKey(source.key)).with_outputs(FAILED, main="rows")


class _CheckKey(CountingDoFn):
    def __init__(self, key: tuple[str, ...]) -> None:
        super().__init__()
        self._key = key

    def process(self, row: Row | FailedRow) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        self.count("rows")
        row = with_key(row, self._key)
        if isinstance(row, FailedRow):
            self.count("failed")
            yield beam.pvalue.TaggedOutput(FAILED, row)
        else:
            yield row


def with_key(row: Row | FailedRow, key: tuple[str, ...]) -> Row | FailedRow:
    """Returns the row if it has a value in each key column, else a failed row."""
    if isinstance(row, FailedRow):
        return row
    missing = [column for column in key if row.get(column) is None]
    if not missing:
        return row
    return failed_row(row, "missing_key", f"no value in key column {missing[0]!r}; the row has {sorted(row)}")
