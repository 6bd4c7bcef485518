"""Rows of a BigQuery table or query, exported once."""

from __future__ import annotations

import apache_beam as beam

from airflow_provider_llmbeam.spec.source import BigQuerySource


def read(root: beam.Pipeline, source: BigQuerySource, export_uri: str) -> beam.PCollection:
    """Exports the rows and reads the files."""
    raise NotImplementedError
