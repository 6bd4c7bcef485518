"""Reads the rows of a job."""

from __future__ import annotations

import apache_beam as beam

from airflow_provider_llmbeam.pipeline.columns import used_columns
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, PLACE
from airflow_provider_llmbeam.pipeline.reporting.tally import TALLIES
from airflow_provider_llmbeam.pipeline.sources import bigquery, files, kafka, pubsub, sql
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import TakeRows
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import (
    BigQuerySource,
    FilesSource,
    KafkaSource,
    PubSubSource,
    RowsSource,
    SqlSource,
)


class ReadRows(beam.PTransform):
    """Reads the source.

    Outputs `rows`, `failed` for those that are not sent, e.g. invalid lines, and `tallies` with their numbers.

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
                found = bigquery.read(root, source, self._spec.paths.export_uri, self._spec.kms_key_name)
            case SqlSource():
                found = sql.read(root, self._spec, used_columns(self._spec))
            case KafkaSource():
                found = kafka.read(root, self._spec, source)
            case PubSubSource():
                found = pubsub.read(root, self._spec, source)
            case RowsSource():
                rows = enumerate(source.rows)
                found = root | beam.Create(
                    [{**row, PLACE: place} if source.picks_by_order else dict(row) for place, row in rows]
                )
        take = beam.ParDo(TakeRows(self._spec, self._context))
        return found | "TakeRows" >> take.with_outputs(FAILED, TALLIES, main="rows")
