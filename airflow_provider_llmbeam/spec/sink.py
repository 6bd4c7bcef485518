"""Where answers go."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

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

    The answers are copied into a temporary table, then upserted by the source's key in one transaction: a reader
    sees the old rows or the new ones, and a second run changes nothing. Rows of other keys stay. The table is
    created with the first answers, where it does not exist: structured answers are `jsonb`. A table of your own
    has a unique constraint on the key, and every output column of a type that the values can be cast to; other
    columns of it stay as they are. NUL, which PostgreSQL cannot hold, becomes U+FFFD.

    Attributes:
        table: `table` or `schema.table`, in the case of letters that it has in the database.
        conn_id: Airflow connection of type `postgres`, when an operator runs the job.
        dsn_env: Environment variable that holds the connection string, `postgresql://…`, when none does.
    """

    type: Literal["postgres"]
    table: Annotated[str, Field(pattern=r"^[A-Za-z_][\w$]*(\.[A-Za-z_][\w$]*)?$")]
    conn_id: str | None = None
    dsn_env: str = "LLMBEAM_POSTGRES_DSN"


class MilvusSink(SpecModel):
    """A Milvus collection with one entity per key, for the vectors of `task: embed`.

    Each entity has the key columns, `vector`, `model`, `fingerprint`, and as its primary key `llmbeam_id`, a hash
    of the key columns: writing a row again replaces it, and a second run changes nothing. The collection is
    created where it does not exist. Milvus has no transactions: while it is written, a reader sees some rows as
    they were and others as they are now. Needs the extra `milvus`.

    Attributes:
        uri: `http://…` or `https://…` of a server, or a local file that ends in `.db` (milvus-lite), which one
            process at a time may open; whoever opens it loads the collection first.
        collection: Its name.
        token_env: Environment variable that holds the token, `user:password` or an API key. Unset, none is sent.
        metric_type: Of the index that the collection is created with.
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
        """Whether it is a file of milvus-lite."""
        return self.uri.endswith(".db") and "://" not in self.uri


Sink = Annotated[
    FilesSink | BigQuerySink | PostgresSink | MilvusSink,
    Field(discriminator="type"),
    BeforeValidator(files_unless_told),
]
