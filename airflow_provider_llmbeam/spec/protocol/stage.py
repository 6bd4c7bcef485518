"""The staged rows of a SQL source: what the task writes, and the process of its job reads."""

from __future__ import annotations

import hashlib

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.job import JobSpec

#: Variable of a process that measures a job, with the beginning of the addresses of its sample.
SAMPLE_VARIABLE = "LLMBEAM_SQL_SAMPLE"
#: Name of the manifest, which is written last: what has none is no stage.
MANIFEST_NAME = "current.json"
#: The one field of the struct that holds a cell whose type Parquet does not have, see `typed_values.encode_typed`.
TYPED = "llmbeam_typed"


class Stage(SpecModel):
    """The manifest of a stage.

    Attributes:
        version: Version of this format.
        prefix: The part of the names of its files that tells them from those of a try that was killed.
        files: Number of its files.
        rows: Number of rows in them.
        query_rows: Number of rows of the query, of which a sample has the first.
    """

    version: int = 1
    prefix: str
    files: int
    rows: int
    query_rows: int

    @property
    def pattern(self) -> str:
        """Pattern of the names of its files."""
        return f"{self.prefix}-*.parquet"


def stages_of_run_uri(spec: JobSpec) -> str:
    """Returns the beginning of the addresses of all stages of a run, e.g. of an earlier query."""
    run = "" if spec.airflow_run is None else spec.airflow_run.model_dump_json()
    return f"{spec.paths.export_uri}sql-{_digest(run)}-"


def stage_uri(spec: JobSpec) -> str:
    """Returns the beginning of the addresses of a stage: another one for another run, query or connection."""
    request = spec.source.model_dump_json(include={"conn_id", "query", "parameters", "hook_params"})
    return f"{stages_of_run_uri(spec)}{_digest(request)}-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
