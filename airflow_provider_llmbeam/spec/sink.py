"""Sinks of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from airflow_provider_llmbeam.spec.base import (
    FieldFaultError,
    SpecModel,
    http_address,
    plain_directory,
    variable_name,
    with_type,
    without_user,
)
from airflow_provider_llmbeam.spec.fields.names import KafkaTopic, MilvusCollection, PostgresTable, PubSubTopic
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import Embedding, Model
from airflow_provider_llmbeam.spec.source import KafkaCluster, full_table_name

#: What a sink has instead of `answer` for an answer with an `output_schema`: one column with its fields, a column
#: per field, or its JSON text.
AnswerColumns = Literal["struct", "flat", "json"]
#: Columns of an output row besides those of the source. What is known of an answer has names that no other table
#: has, and no schema of an answer.
OUTPUT_COLUMNS = (
    "answer",
    "llmbeam_origin",
    "llmbeam_model",
    "llmbeam_fingerprint",
    "llmbeam_finish_reason",
    "llmbeam_input_tokens",
    "llmbeam_output_tokens",
    "llmbeam_attempts",
    "llmbeam_latency_seconds",
)

#: Those of them that an entity of Milvus has.
MILVUS_DETAILS = ("llmbeam_model", "llmbeam_fingerprint")


#: A file, and no glob, which is refused as one.
_FILE = re.compile(r"[^*?\[]+\.(jsonl?|ndjson|csv|parquet|avro)(\.gz)?", re.IGNORECASE)


class AnswerVectors(Embedding):
    """Vectors of the answers of a stream, for a sink that stores vectors.

    Attributes:
        model: The embedding model.
        field: What becomes a vector: `answer`, a field of an answer with an `output_schema`, or a column of the
            message.
        limits: Rates of the embedding model; the budget is that of the job.
    """

    model: Model
    field: Annotated[str, Field(min_length=1)] = "answer"
    limits: Limits = Limits()


class _Sink(SpecModel):
    """Fields of every sink.

    Attributes:
        passthrough: Columns of the source that every output row has, too; a row without one of them has null.
        details: Whether every output row has the columns `llmbeam_…`: origin, model, tokens and others. `False`:
            key, answer and `passthrough` alone, and columns that another field asks for, such as
            `generation.logprobs`. An existing table of BigQuery or PostgreSQL gets those that it has columns for.
    """

    passthrough: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=1000)] = ()
    details: bool = True


class FilesSink(_Sink):
    """A directory on any filesystem that Beam writes.

    It receives `answers-*.jsonl` or `answers-*.parquet`, `dead_letter-*.jsonl` (always JSON lines: failed rows
    have no common schema) and `report.json`. All are staged and published when the job is complete.

    The answers are replaced as a whole, so the directory belongs to the first job that uses it: a file below it,
    `.llmbeam/_owner.json`, names this job by Dag, task and map index, or by `name` without Airflow, never by its
    run. A directory with a file of these names that no job has published is refused. The other sinks have no
    owner, as they write by key and keep the rows of other keys.

    Attributes:
        uri: The directory, created if needed.
        format: `jsonl` or `parquet`.
        shards: Number of answer files. One is enough up to some millions of rows.
        on_existing: Policy for the answers that are there. `replace` replaces those of the job itself, and refuses
            those of another job before anything is sent. `merge` keeps the answers, and the rows of the dead
            letter, whose keys this run does not have, of whatever job; a row that fails now keeps its answer. It
            refuses a directory with a file `answers-*` whose name no job writes.
            `take_over` replaces the answers of another job, and makes this one the owner.
        answer_columns: Form of an answer with an `output_schema`. `struct`: `answer` has its fields, in Parquet
            with the types of the schema; fields that the schema does not name are in JSON lines only. `flat`: a
            column per property of the schema, and no `answer`. `json`: `answer` is JSON text.
    """

    type: Literal["files"] = "files"
    uri: Annotated[str, Field(min_length=1)]
    format: Literal["jsonl", "parquet"] = "jsonl"
    shards: Annotated[int, Field(ge=1, le=1000)] = 1
    on_existing: Literal["replace", "merge", "take_over"] = "replace"
    answer_columns: AnswerColumns = "struct"

    _no_password = field_validator("uri")(without_user)
    _directory = field_validator("uri")(plain_directory)

    @field_validator("uri", mode="before")
    @classmethod
    def _no_file(cls, uri: Any) -> Any:
        if isinstance(uri, str) and _FILE.fullmatch(uri.strip()):
            raise ValueError(
                "must be a directory, in which the job names its files; `sink.format` is 'jsonl' or 'parquet'. "
                "A / at the end says that a directory has this name"
            )
        return uri


class BigQuerySink(_Sink):
    """A BigQuery table with one row per key.

    The answers are loaded into a staging table, then merged by the key of the source in one statement: a
    reader sees the old rows or the new ones, and a second run changes nothing. The table is created if it
    does not exist; its other columns are not changed. If one of them needs a value, as in a table of your
    own, rows are updated and none is inserted: an answer whose key has no row is a failed row. A key column
    may have any type that the key can be cast to, e.g. DATE or NUMERIC; `answer` is STRING, or JSON in an
    existing table, where a text that is no JSON is a JSON string. An empty text, as CSV has it for no value,
    becomes NULL in a column of another type.

    Attributes:
        table: Name of the table, `project.dataset.table`; the dataset must exist.
        project: Google Cloud project that runs the load and the merge. `None`: that of the table.
        location: Location of the dataset, if BigQuery cannot determine it.
        answer_columns: Form of an answer with an `output_schema`. `json`: `answer` is JSON text, so that a table
            outlives a change of the schema. `struct`: `answer` is a RECORD with the fields of the schema.
            `flat`: a column per property of the schema, and no `answer`. Lists of lists, lists with nulls, and
            what the schema gives no type are JSON text; an answer with another value that its column does not
            hold, e.g. an integer of more than 64 bits, is a failed row.
    """

    type: Literal["bigquery"]
    table: str
    project: str | None = None
    location: str | None = None
    answer_columns: AnswerColumns = "json"

    _full_name = field_validator("table")(full_table_name)


class PostgresSink(_Sink):
    """A PostgreSQL table with one row per key.

    The answers are copied into a temporary table, then upserted by the key of the source in one transaction: a
    reader sees the old rows or the new ones, and a second run changes nothing. Rows of other keys are kept. The
    table is created with the first answers if it does not exist; structured answers are `jsonb`. An existing table
    needs a unique constraint on the key that is not deferrable, and all output columns with types that the values
    can be cast to; its other columns are not changed, and where one needs a value, an answer whose key has no row
    is a failed row. A list may go to an array, and an empty text, as CSV has it
    for no value, becomes null where a type has none. NUL, which PostgreSQL cannot store, becomes U+FFFD. Answers
    that the server refuses, or that a trigger keeps out of the table, are failed rows.

    Attributes:
        table: Name of the table, `table` or `schema.table`, case-sensitive.
        conn_id: Airflow connection of type `postgres`, used by the operators.
        dsn_env: Environment variable that holds the connection string, `postgresql://…`, for jobs that no operator
            runs.
        answer_columns: Form of an answer with an `output_schema`. `json`: `answer` is `jsonb`. `flat`: a column
            per property of the schema, and no `answer`.
        vector_type: Type of the vectors of `task: embed` in a new table: `jsonb`, or `vector` of pgvector, whose
            extension the database must have.
        embed: What a sink of a stream stores instead of the answers: their vectors. `passthrough` may name
            `llmbeam_text`, what the vector is of.
    """

    type: Literal["postgres"]
    table: PostgresTable
    conn_id: str | None = None
    dsn_env: str = "LLMBEAM_POSTGRES_DSN"
    answer_columns: Literal["flat", "json"] = "json"
    vector_type: Literal["jsonb", "vector"] = "jsonb"
    embed: AnswerVectors | None = None

    _variable = field_validator("dsn_env")(variable_name)


class MilvusSink(_Sink):
    """A Milvus collection with one entity per key, for the vectors of `task: embed`, or of answers of a stream.

    Each entity has the key columns, those of `passthrough`, `vector`, with `details` `llmbeam_model` and
    `llmbeam_fingerprint`, and as its primary key `llmbeam_id`, a hash of the key columns: writing a row again
    replaces it, and a second run changes nothing. The collection is created if it does not exist. Milvus has no
    transactions: during the write a reader sees both old and new rows. Needs the extra `milvus`.

    Attributes:
        uri: Address of a server, `http://…` or `https://…`, or a local file with the extension `.db`
            (milvus-lite), which one process at a time can open; a process that opens it must load the collection.
        collection: Name of the collection.
        token_env: Environment variable that holds the token, `user:password` or an API key. If it is unset, no
            token is sent.
        metric_type: Metric of the index of a new collection.
        embed: Makes the vectors of the answers of a stream, which are texts. `passthrough` may name
            `llmbeam_text`, what the vector is of.
    """

    type: Literal["milvus"]
    uri: str
    collection: MilvusCollection
    token_env: str = "MILVUS_TOKEN"
    metric_type: Literal["COSINE", "IP", "L2"] = "COSINE"
    embed: AnswerVectors | None = None

    _variable = field_validator("token_env")(variable_name)

    @field_validator("uri")
    @classmethod
    def _server_or_file(cls, uri: str) -> str:
        if uri.startswith(("http://", "https://")):
            return http_address(uri) or uri
        if "://" in uri or not uri.endswith(".db"):
            raise ValueError("must start with http:// or https://, or be a local file that ends in .db")
        return uri

    @property
    def is_local(self) -> bool:
        """Whether `uri` is a local file of milvus-lite."""
        return self.uri.endswith(".db") and "://" not in self.uri


class KafkaSink(KafkaCluster, _Sink):
    """A Kafka topic, which receives one message per answer.

    The value of a message is the output row as JSON. All messages of a run are sent in one transaction by an
    idempotent producer: readers with the isolation level `read_committed` (the default of librdkafka, not of the
    Java client) see all of them or none. A run that is repeated with the same answers sends nothing; one that was
    killed within the moment after the transaction sends them again, with the same keys. The topic must exist.
    Needs the extra `kafka`.

    Attributes:
        topic: The topic.
        key: Column of the output row whose value, as text, is the key of its message; null is none. `None`: the
            key of the row as JSON, and in a stream the key of the message that was answered.
    """

    type: Literal["kafka"]
    topic: KafkaTopic
    key: Annotated[str, Field(min_length=1)] | None = None
    config_env: str = "LLMBEAM_KAFKA_SINK_CONFIG"


class PubSubSink(_Sink):
    """A Pub/Sub topic, which receives one message per answer.

    The data of a message is the output row as JSON, and its attribute `llmbeam_key` the key of the row as JSON, or
    its SHA-256 if that is too long for an attribute. Pub/Sub has no transactions: a run that is killed while it
    sends, and is repeated, sends all messages again; one that is repeated after its success, with the same
    answers, sends none.

    Attributes:
        topic: Name of the topic, `projects/…/topics/…`.
        ordering_key: Column of the output row whose value, as text, is the ordering key: subscriptions with
            message ordering get the messages of one key in the order of the output rows. `None`: without order.
    """

    type: Literal["pubsub"]
    topic: PubSubTopic
    ordering_key: Annotated[str, Field(min_length=1)] | None = None


#: E.g. `project.dataset.table`, which would otherwise become a directory of that name.
_TABLE = re.compile(r"[\w-]+[.:][\w-]+\.[\w-]+")
#: Types of sinks that keep every message.
_QUEUES = ("kafka", "pubsub")
_SERVERS = ("postgres", "bigquery", "bq://", "http://", "https://", "milvus")


def sink_data(data: Any) -> Any:
    """Returns the fields of a sink that is given by its path alone, or without its type; other values unchanged.

    Raises:
        ValueError: The text is no path, but names a table or a server.
        FieldFaultError: A queue has a field for what is done with earlier answers.
    """
    data = from_text(data)
    if isinstance(data, str):
        if data.startswith(_SERVERS) or _TABLE.fullmatch(data):
            raise ValueError(
                "must be a directory if it is text; a table or a server needs its type, e.g. {'type': 'bigquery', "
                "'table': 'project.dataset.table'}"
            )
        data = {"uri": data}
    data = with_type(data, _types_of(data))
    if isinstance(data, Mapping) and data.get("type") in _QUEUES:
        for name in ("on_existing", "write_disposition"):
            if name in data:
                raise FieldFaultError(
                    name,
                    "must be left out: messages are added to a topic, and those that are there are neither "
                    "replaced nor merged",
                    data[name],
                )
    return data


def _types_of(data: Any) -> dict[str, str]:
    """Returns the type of a sink by a field: a table of BigQuery is `project.dataset.table`."""
    names = data if isinstance(data, Mapping) else {}
    in_postgres = {"conn_id", "dsn_env"} & {*names} or str(names.get("table")).count(".") < 2
    in_pubsub = str(names.get("topic")).startswith("projects/")
    return {
        "table": "postgres" if in_postgres else "bigquery",
        "collection": "milvus",
        "topic": "pubsub" if in_pubsub else "kafka",
    }


Sink = Annotated[
    FilesSink | BigQuerySink | PostgresSink | MilvusSink | KafkaSink | PubSubSink,
    Field(discriminator="type"),
    BeforeValidator(sink_data),
]
