"""Rows of a SQL source, which its task has staged as Parquet files."""

from __future__ import annotations

import logging
import os

import apache_beam as beam

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row
from airflow_provider_llmbeam.pipeline.sources import files
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.stage import (
    MANIFEST_NAME,
    SAMPLE_VARIABLE,
    TYPED,
    Stage,
    stage_uri,
    stages_of_run_uri,
)
from airflow_provider_llmbeam.spec.source import SqlSource
from airflow_provider_llmbeam.spec.typed_values import decode_typed

_log = logging.getLogger("llmbeam")


def read(root: beam.Pipeline, spec: JobSpec, used: frozenset[str] | None = None) -> beam.PCollection:
    """Reads the staged rows of a job.

    Args:
        root: The pipeline.
        spec: The job.
        used: See `files.RowFormat`.

    Raises:
        JobSpecError: No task has staged them.
    """
    pattern, _ = find_stage(spec, stage_uri(spec))
    rows = files.read_format(root, pattern, files.RowFormat("parquet", used=used))
    return rows | "WithTypes" >> beam.Map(with_types)


def find_sample(spec: JobSpec) -> tuple[str, Stage]:
    """Returns the pattern of the files of what is measured of a job, and its manifest.

    Raises:
        JobSpecError: Nothing is staged.
    """
    pattern, stage = find_stage(spec, os.environ.get(SAMPLE_VARIABLE) or stage_uri(spec))
    if stage.rows < stage.query_rows:
        _log.warning(
            "Read: the first %s of %s rows of `source.query`, in its order, which is no random sample.",
            f"{stage.rows:,}",
            f"{stage.query_rows:,}",
        )
    return pattern, stage


def find_stage(spec: JobSpec, begin: str) -> tuple[str, Stage]:
    """Returns the pattern of the files of a stage, and its manifest.

    Raises:
        JobSpecError: There is none.
    """
    manifest = storage.read_if_exists(f"{begin}{MANIFEST_NAME}")
    if manifest is None:
        assert isinstance(spec.source, SqlSource)
        raise JobSpecError(
            f"`source.conn_id`: {spec.source.conn_id!r} is a connection of Airflow, and no task has staged the "
            f"rows of its query in {spec.paths.export_uri!r}. Run the task, or name its Dag file, "
            "e.g. dags/x.py::task."
        )
    stage = Stage.model_validate_json(manifest)
    return f"{begin}{stage.pattern}", stage


def with_types(row: Row | FailedRow) -> Row | FailedRow:
    """Returns a row whose cells have the types of the database."""
    if isinstance(row, FailedRow):
        return row
    return {name: decode_typed(cell[TYPED]) if type(cell) is dict else cell for name, cell in row.items()}


def discard(spec: JobSpec) -> None:
    """Deletes the stages of a run, their manifests first, so that its next run reads current rows."""
    for pattern in (f"*-{MANIFEST_NAME}", "*"):
        storage.delete(storage.match(f"{stages_of_run_uri(spec)}{pattern}"))
