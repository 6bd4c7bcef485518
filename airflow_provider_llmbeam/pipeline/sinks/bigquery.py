"""Answers into a BigQuery table, by one MERGE."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_llmbeam.spec.sink import BigQuerySink


def publish(sink: BigQuerySink, key: tuple[str, ...], job: str, staged: Mapping[int, str]) -> list[str]:
    """Publishes the staged file; doing it again changes nothing."""
    raise NotImplementedError
