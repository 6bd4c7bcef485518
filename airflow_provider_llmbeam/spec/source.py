"""Where rows come from."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel, files_unless_told

FileFormat = Literal["jsonl", "csv", "parquet", "avro"]

_ENDINGS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".avro": "avro",
}

#: Columns that every output row carries beside its key.
OUTPUT_COLUMNS = (
    "answer",
    "origin",
    "model",
    "fingerprint",
    "finish_reason",
    "input_tokens",
    "output_tokens",
    "attempts",
    "latency_seconds",
)


class _Source(SpecModel):
    """What every source has.

    Attributes:
        key: The columns that name a row; every output row carries them.
        on_duplicate_key: What to do when several rows have one key. `error` ends the job before anything is sent;
            `dead_letter` answers one of them, the same one in every run, and puts the others into the dead
            letter; `allow` answers them all, for a sink that does not write by key.
    """

    key: Annotated[tuple[str, ...], Field(min_length=1)]
    on_duplicate_key: Literal["error", "dead_letter", "allow"] = "error"

    @field_validator("key")
    @classmethod
    def _no_output_column(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if taken := sorted(set(key) & set(OUTPUT_COLUMNS)):
            raise ValueError(f"{taken} would be overwritten: every output row has columns of that name")
        if len(set(key)) < len(key):
            raise ValueError("must name each column once")
        return key


class FilesSource(_Source):
    """Rows in files on any filesystem that Beam reads: local, `gs://`, `s3://`, `hdfs://`.

    Attributes:
        uri: A path or a glob. Compressed files are recognised by their ending.
        format: `jsonl` (one object per line), `csv` (with a header; every value is text), `parquet` or `avro`.
            Left out, the ending of `uri` decides.
    """

    type: Literal["files"] = "files"
    uri: Annotated[str, Field(min_length=1)]
    format: FileFormat | None = None

    @model_validator(mode="after")
    def _format_is_known(self) -> Self:
        _ = self.resolved_format
        return self

    @property
    def resolved_format(self) -> FileFormat:
        """The format given, or the one that the ending of `uri` says."""
        return self.format or format_of(self.uri)


class BigQuerySource(_Source):
    """Rows of a BigQuery table or query, exported once to files that the job then reads.

    An export costs nothing, and a query is billed once, not once for each attempt: a retry reads the same files.
    They are removed when the job has succeeded, so that a later run reads fresh rows. A row holds what JSON has:
    NUMERIC, dates and times are text, BYTES is base64, GEOGRAPHY is WKT.

    Attributes:
        table: `project.dataset.table`; either this or `query`.
        query: GoogleSQL.
        project: Google Cloud project that runs and pays for the query; left out, that of the table or of the
            credentials.
        location: Of the dataset, where BigQuery cannot tell by itself, e.g. `EU`.
        export_uri: Directory on Cloud Storage for the exports, each below the name of its job; left out, below
            `state_uri`, which then is there.
    """

    type: Literal["bigquery"]
    table: str | None = None
    query: str | None = None
    project: str | None = None
    location: str | None = None
    export_uri: str | None = None

    @field_validator("table")
    @classmethod
    def _full_name(cls, table: str | None) -> str | None:
        return table if table is None else full_table_name(table)

    @field_validator("export_uri")
    @classmethod
    def _on_cloud_storage(cls, export_uri: str | None) -> str | None:
        if export_uri is None:
            return None
        if not export_uri.startswith("gs://"):
            raise ValueError("must start with gs://: BigQuery exports to Cloud Storage alone")
        return export_uri if export_uri.endswith("/") else f"{export_uri}/"

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.table is None) == (self.query is None):
            raise ValueError("needs either `table` or `query`")
        return self


class RowsSource(_Source):
    """Rows written into the job itself, for small jobs and tests.

    Attributes:
        rows: At most 10,000: they travel with the spec.
    """

    type: Literal["rows"]
    rows: Annotated[tuple[dict[str, Any], ...], Field(max_length=10_000)]


Source = Annotated[
    FilesSource | BigQuerySource | RowsSource, Field(discriminator="type"), BeforeValidator(files_unless_told)
]


def full_table_name(table: str) -> str:
    """Checks the name of a BigQuery table.

    Raises:
        ValueError: It is not `project.dataset.table`.
    """
    parts = table.replace(":", ".", 1).rsplit(".", 2)
    if len(parts) != 3 or not all(parts):
        raise ValueError("must be `project.dataset.table`")
    return ".".join(parts)


def format_of(uri: str) -> FileFormat:
    """Reads the format off a path's ending (`.csv.gz` is `csv`).

    Raises:
        ValueError: No known ending.
    """
    for suffix in reversed(PurePosixPath(uri).suffixes):
        if known := _ENDINGS.get(suffix.lower()):
            return known
    raise ValueError(f"`format` is needed: {uri!r} ends in none of {', '.join(_ENDINGS)}")
