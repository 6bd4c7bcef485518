"""Where answers go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel, files_unless_told
from airflow_provider_llmbeam.spec.source import full_table_name


class FilesSink(SpecModel):
    """A directory on any filesystem that Beam writes.

    It receives `answers-*.jsonl` or `answers-*.parquet`, `dead_letter-*.jsonl` (always JSON lines: failed rows
    have no common schema) and `report.json`. All are written aside and moved in when the job is complete.

    Attributes:
        uri: The directory; it is created. Two jobs must not share one.
        format: `jsonl` or `parquet`. In Parquet a structured answer is JSON text.
        shards: How many answer files. One is right up to some millions of rows.
    """

    type: Literal["files"] = "files"
    uri: Annotated[str, Field(min_length=1)]
    format: Literal["jsonl", "parquet"] = "jsonl"
    shards: Annotated[int, Field(ge=1, le=1000)] = 1

    @field_validator("uri")
    @classmethod
    def _plain_directory(cls, uri: str) -> str:
        uri = uri.strip()
        if not uri:
            raise ValueError("must name a directory")
        if any(sign in uri for sign in "*?["):
            raise ValueError("must be one directory, not a glob")
        return uri if uri.endswith("/") else f"{uri}/"


class BigQuerySink(SpecModel):
    """A BigQuery table with one row per key.

    The answers are loaded into a staging table, then merged by the source's key in one statement: a reader sees
    the old rows or the new ones, and a second run changes nothing. The table is created where it does not exist;
    columns of it that the job does not know stay as they are. A key column may have any type that the key can be
    cast to, e.g. DATE or NUMERIC; `answer` is STRING, or JSON in a table of your own.

    Attributes:
        table: `project.dataset.table`; the dataset is there already.
        project: Google Cloud project that runs the load and the merge; left out, that of the table.
        location: Of the dataset, where BigQuery cannot tell by itself.
    """

    type: Literal["bigquery"]
    table: str
    project: str | None = None
    location: str | None = None

    _full_name = field_validator("table")(full_table_name)


class PostgresSink(SpecModel):
    """A PostgreSQL table with one row per key.

    The answers are copied into a temporary table, then upserted by the source's key in one transaction. The table
    is created where it does not exist; columns of it that the job does not know stay as they are.

    Attributes:
        table: `table` or `schema.table`.
        conn_id: Airflow connection, when an operator runs the job.
        dsn_env: Environment variable that holds the connection string, `postgresql://…`, when none does.
    """

    type: Literal["postgres"]
    table: Annotated[str, Field(pattern=r"^[A-Za-z_][\w$]*(\.[A-Za-z_][\w$]*)?$")]
    conn_id: str | None = None
    dsn_env: str = "LLMBEAM_POSTGRES_DSN"


Sink = Annotated[
    FilesSink | BigQuerySink | PostgresSink, Field(discriminator="type"), BeforeValidator(files_unless_told)
]
