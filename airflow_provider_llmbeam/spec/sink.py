"""Sinks of answers."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel, files_by_default
from airflow_provider_llmbeam.spec.source import full_table_name


class FilesSink(SpecModel):
    """A directory on any filesystem that Beam writes.

    It receives `answers-*.jsonl` or `answers-*.parquet`, `dead_letter-*.jsonl` (always JSON lines: failed rows
    have no common schema) and `report.json`. All are staged and published when the job is complete.

    Attributes:
        uri: The directory, created if needed. Two jobs must not share one.
        format: `jsonl` or `parquet`. In Parquet a structured answer is JSON text.
        shards: Number of answer files. One is enough up to some millions of rows.
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

    The answers are loaded into a staging table, then merged by the key of the source in one statement: a reader
    sees the old rows or the new ones, and a second run changes nothing. The table is created if it does not exist;
    its other columns are not changed. A key column may have any type that the key can be cast to, e.g. DATE or
    NUMERIC; `answer` is STRING, or JSON in an existing table.

    Attributes:
        table: Name of the table, `project.dataset.table`; the dataset must exist.
        project: Google Cloud project that runs the load and the merge. `None`: that of the table.
        location: Location of the dataset, if BigQuery cannot determine it.
    """

    type: Literal["bigquery"]
    table: str
    project: str | None = None
    location: str | None = None

    _full_name = field_validator("table")(full_table_name)


class PostgresSink(SpecModel):
    """A PostgreSQL table with one row per key.

    The answers are copied into a temporary table, then upserted by the key of the source in one transaction: a
    reader sees the old rows or the new ones, and a second run changes nothing. Rows of other keys are kept. The
    table is created with the first answers if it does not exist; structured answers are `jsonb`. An existing table
    needs a unique constraint on the key, and all output columns with types that the values can be cast to; its
    other columns are not changed. NUL, which PostgreSQL cannot store, becomes U+FFFD.

    Attributes:
        table: Name of the table, `table` or `schema.table`, case-sensitive.
        conn_id: Airflow connection of type `postgres`, used by the operators.
        dsn_env: Environment variable that holds the connection string, `postgresql://…`, for jobs that no operator
            runs.
    """

    type: Literal["postgres"]
    table: Annotated[str, Field(pattern=r"^[A-Za-z_][\w$]*(\.[A-Za-z_][\w$]*)?$")]
    conn_id: str | None = None
    dsn_env: str = "LLMBEAM_POSTGRES_DSN"


class MilvusSink(SpecModel):
    """A Milvus collection with one entity per key, for the vectors of `task: embed`.

    Each entity has the key columns, `vector`, `model`, `fingerprint`, and as its primary key `llmbeam_id`, a hash
    of the key columns: writing a row again replaces it, and a second run changes nothing. The collection is
    created if it does not exist. Milvus has no transactions: during the write a reader sees both old and new rows.
    Needs the extra `milvus`.

    Attributes:
        uri: Address of a server, `http://…` or `https://…`, or a local file with the extension `.db`
            (milvus-lite), which one process at a time can open; a process that opens it must load the collection.
        collection: Name of the collection.
        token_env: Environment variable that holds the token, `user:password` or an API key. If it is unset, no
            token is sent.
        metric_type: Metric of the index of a new collection.
    """

    type: Literal["milvus"]
    uri: str
    collection: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")]
    token_env: str = "MILVUS_TOKEN"
    metric_type: Literal["COSINE", "IP", "L2"] = "COSINE"

    @field_validator("uri")
    @classmethod
    def _server_or_file(cls, uri: str) -> str:
        address = urlsplit(uri)
        if address.scheme in ("http", "https"):
            if "@" in address.netloc:
                raise ValueError("must hold no password: name the environment variable in `token_env`")
            return uri.rstrip("/")
        if "://" in uri or not uri.endswith(".db"):
            raise ValueError("must start with http:// or https://, or be a local file that ends in .db")
        return uri

    @property
    def is_local(self) -> bool:
        """Whether `uri` is a local file of milvus-lite."""
        return self.uri.endswith(".db") and "://" not in self.uri


Sink = Annotated[
    FilesSink | BigQuerySink | PostgresSink | MilvusSink,
    Field(discriminator="type"),
    BeforeValidator(files_by_default),
]
