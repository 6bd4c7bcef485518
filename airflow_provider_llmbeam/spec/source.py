"""Sources of rows: files, BigQuery, SQL databases, queues, or the spec itself."""

from __future__ import annotations

import codecs
import csv
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Field,
    TypeAdapter,
    field_validator,
    model_validator,
)

from airflow_provider_llmbeam.spec.base import (
    FieldFaultError,
    SpecModel,
    plain_directory,
    variable_name,
    with_type,
    without_user,
)
from airflow_provider_llmbeam.spec.characters import valid_value
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.fields.names import KafkaTopic, PubSubSubscription
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.nesting import MAX_DEPTH, changed_by_json, depth_exceeds
from airflow_provider_llmbeam.spec.plain_values import plain_value

FileFormat = Literal["jsonl", "csv", "parquet", "avro"]
_ENDINGS: dict[str, FileFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".avro": "avro",
}
#: The signs of a glob.
_GLOB = re.compile(r"(?<![^/])\*\*/|\*+|\?|\[!?[^\]]+\]")
_OF_SIGN = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_JSON = TypeAdapter(Any)
_Ratio = Annotated[float, Field(ge=0, le=1)]


class KafkaCluster(SpecModel):
    """A Kafka cluster, for a source and for a sink.

    Its client settings (`security.protocol`, `sasl.password` and others of librdkafka) are never part of the spec.

    Attributes:
        bootstrap_servers: Brokers, `host:9092,host:9092`. `None`: the client settings name them.
        conn_id: Airflow connection of type `kafka`, used by the operators: its extra is the client settings.
        config_env: Environment variable that holds the client settings as a JSON object, for jobs that no operator
            runs.
    """

    bootstrap_servers: Annotated[str, Field(min_length=1)] | None = None
    conn_id: str | None = None
    config_env: str

    _variable = field_validator("config_env")(variable_name)

    @field_validator("bootstrap_servers")
    @classmethod
    def _hosts(cls, servers: str | None) -> str | None:
        if servers is not None and "@" in servers:
            raise FieldFaultError(
                "", "must be hosts and ports alone, 'host:9092': a password belongs in the connection"
            )
        return servers

    @property
    def shown_servers(self) -> str:
        """The brokers, or what names them, for messages and reports."""
        return self.bootstrap_servers or (
            f"connection {self.conn_id!r}" if self.conn_id else f"${self.config_env}"
        )


class CsvOptions(SpecModel):
    r"""How CSV files are written; the options are those of `pandas.read_csv`.

    Attributes:
        delimiter: Character between two cells, e.g. `;` or a tab.
        quotechar: Character around a cell with delimiters or line breaks. `None`: cells are never quoted.
        doublequote: Whether a `quotechar` in a quoted cell is doubled.
        escapechar: Character before a delimiter or a `quotechar` that is a part of a cell.
        encoding: Encoding of the files by its name in Python, e.g. `latin-1` or `utf-16`. A row with bytes that
            are none of its characters fails.
        header: 0 if the first line has the names of the columns; `None` if there is no such line, which needs
            `names`.
        names: Names of the columns, also in place of those of the header.
        skiprows: Number of lines to skip at the beginning of each file, before the header.
    """

    delimiter: str = ","
    quotechar: str | None = '"'
    doublequote: bool = True
    escapechar: str | None = None
    encoding: str = "utf-8"
    header: Literal[0] | None = 0
    names: tuple[str, ...] = ()
    skiprows: Annotated[int, Field(ge=0)] = 0

    @field_validator("delimiter", "quotechar", "escapechar")
    @classmethod
    def _is_one_character(cls, sign: str | None) -> str | None:
        if sign is not None and (len(sign) != 1 or sign in "\r\n"):
            raise ValueError(r'must be one character, e.g. ";", or "\t" for a tab')
        return sign

    @field_validator("encoding")
    @classmethod
    def _is_encoding(cls, name: str) -> str:
        try:
            "a".encode(name)  # refuses codecs of bytes, such as base64
            found = codecs.lookup(name).name
        except (LookupError, ValueError):
            found = ""
        if not found or found in ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined"):
            raise ValueError("must be an encoding of Python, e.g. 'utf-8', 'latin-1', 'cp1252' or 'utf-16'")
        return name

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        if self.header is None and not self.names:
            raise ValueError("needs `names`, the names of the columns, where `header` is None")
        if len(set(self.names)) < len(self.names):
            raise ValueError("must name each column once in `names`")
        if self.delimiter == self.quotechar:
            raise ValueError("must have different characters for `delimiter` and `quotechar`")
        return self

    @property
    def codec(self) -> str:
        """The encoding, which skips the byte order mark of UTF-8."""
        return "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding

    @property
    def can_be_cut(self) -> bool:
        """Whether a file can be read from the middle, as a line break is one byte."""
        return len("\n".encode(self.encoding)) == 1

    @property
    def dialect(self) -> dict[str, Any]:
        """Arguments of the module `csv`."""
        quoting = {"quoting": csv.QUOTE_NONE} if self.quotechar is None else {"quotechar": self.quotechar}
        return {
            "delimiter": self.delimiter,
            "doublequote": self.doublequote,
            "escapechar": self.escapechar,
            **quoting,
        }


class _Source(SpecModel):
    """Fields of every source.

    Attributes:
        key: Columns that identify a row; every output row has them. One column may be given by its name alone.
        on_duplicate_key: Policy for rows that differ and have the same key. `error` fails the job before anything
            is sent; `first` and `last` answer the first or the last of them, and skip the others: files have an
            order by their paths, and rows by their places in a file, or in `rows`; tables and queues have none, so
            they are refused there. `dead_letter` answers one of them, the same in every run, and writes the others
            to the dead letter. Of identical rows one is answered, and the others count as skipped. `allow` answers
            all rows, for a sink that does not write by key.
        on_empty: Policy for a source without rows, e.g. a file of zero bytes. `fail` fails the job, and `skip`
            ends it as skipped, in Airflow as a skipped task: both leave the output as it is. `write` publishes
            no answers. A source that matches no file is an error in any case, see `on_missing` of files.
        skip_empty: Columns of which a row needs one with a value: it is skipped if each is NULL, missing, or a
            text of blanks. Skipped rows are counted in the report, and are no failed rows.
        min_rows: Smallest number of rows, without those that are skipped. With fewer the job fails before anything
            is sent.
        share: Part of the rows to read, from one number up to another between 0 and 1, by a hash of the key: jobs
            with `[0, 0.05]` and `[0.05, 1]` have all rows between them, each once, and every run the same.
    """

    key: Annotated[tuple[str, ...], Field(min_length=1)]
    on_duplicate_key: Literal["error", "first", "last", "dead_letter", "allow"] = "error"
    on_empty: Literal["fail", "skip", "write"] = "fail"
    skip_empty: tuple[str, ...] = ()
    min_rows: Annotated[int, Field(ge=0)] = 0
    share: tuple[_Ratio, _Ratio] = (0.0, 1.0)

    @field_validator("share")
    @classmethod
    def _share_is_a_range(cls, share: tuple[float, float]) -> tuple[float, float]:
        if share[0] >= share[1]:
            raise ValueError("must be two numbers from 0 to 1, the smaller one first, e.g. [0, 0.05]")
        return share

    @field_validator("key", "skip_empty", mode="before")
    @classmethod
    def _one_column(cls, columns: Any) -> Any:
        found = from_text(columns)
        return (found,) if isinstance(found, str) else found

    @field_validator("key")
    @classmethod
    def _different_columns(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(key)) < len(key):
            raise ValueError("must name each column once")
        return key

    @property
    def picks_by_order(self) -> bool:
        """Whether the order of rows with the same key decides which of them is answered."""
        return self.on_duplicate_key in ("first", "last")

    @model_validator(mode="after")
    def _min_rows_and_policy_agree(self) -> Self:
        if self.min_rows and self.on_empty == "write":
            raise ValueError(
                f"`min_rows` is {self.min_rows}, and `on_empty` 'write' accepts a source without rows: set "
                "`on_empty` to 'fail' or 'skip', or leave `min_rows` out"
            )
        return self


class FilesSource(_Source):
    """Rows in files on any filesystem that Beam reads: local, `gs://`, `s3://`, `hdfs://`.

    Attributes:
        uri: A path or a glob: `*` and `?` stand for characters of one name, `**/` for any folders or none, `**`
            for anything, `[ab]` for one of these characters. A file of exactly this name is that file alone.
            Compressed files, of JSON lines or CSV, are recognised by their extension or their first bytes.
        format: `jsonl` (one object per line), `csv` (every value is text), `parquet` or `avro`. `None`: derived
            from the extension of `uri`. Text in a Parquet column of type `binary` is text; other bytes are base64
            in the output and in the dead letter.
        csv: How CSV files are written; by default with commas, double quotes, a header, in UTF-8.
        on_missing: What a `uri` that matches no file does: `fail` ends the task, and `retry` has Airflow try again
            as often as its `retries` say, so that a late file is waited for.
        failed_kinds: Kinds of failure whose rows are read from a dead letter, e.g. `("truncated",)`; empty for all
            kinds. The other rows stay in the dead letter.
    """

    type: Literal["files"] = "files"
    uri: Annotated[str, Field(min_length=1)]
    format: FileFormat | None = None
    csv: CsvOptions = CsvOptions()
    on_missing: Literal["fail", "retry"] = "fail"
    failed_kinds: tuple[FailureKind, ...] = ()

    _no_password = field_validator("uri")(without_user)

    @model_validator(mode="after")
    def _format_is_known(self) -> Self:
        if self.resolved_format != "csv" and self.csv != CsvOptions():
            raise ValueError(
                f"has `csv` options, and its format is {self.resolved_format!r}: set `format` to 'csv', or leave "
                "them out"
            )
        return self

    @property
    def resolved_format(self) -> FileFormat:
        """The given format, or the one of the extension of `uri`."""
        return self.format or format_of(self.uri)


class BigQuerySource(_Source):
    """Rows of a BigQuery table or query, exported once to files that the job then reads.

    An export is free, and a query is billed once, not once per attempt: a retry reads the same files. They are
    deleted when the job has succeeded, so that a later run reads current rows. A table with rows in its streaming
    buffer, which an export leaves out, is read by a query. Rows have the types of JSON: NUMERIC, dates and times
    are text, BYTES is base64, GEOGRAPHY is WKT.

    Attributes:
        table: Name of the table, `project.dataset.table`; exactly one of `table` and `query` is required.
        query: Query in GoogleSQL.
        project: Google Cloud project that runs and pays for the query. `None`: that of the table or of the
            credentials.
        location: Location of the dataset, e.g. `EU`, if BigQuery cannot determine it.
        export_uri: Directory on Cloud Storage for the exports, each below the name of its job. `None`: below
            `state_uri`, which is then required.
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
        return plain_directory(export_uri)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.table is None) == (self.query is None):
            raise ValueError("needs either `table` or `query`")
        return self


class SqlSource(_Source):
    """Rows of a query to any database that Airflow has a `DbApiHook` for, read once per run.

    The task reads them with a cursor that the server keeps, and stages them as Parquet files below `state_uri`;
    the job and its retries read those. They are deleted when the answers are published, so that a later run reads
    current rows. The query is no secret: values that are belong in the connection.

    Decimals, dates, times and UUIDs keep their types, and JSON that the driver decodes is an object. A time with a
    zone is the same moment in UTC. Bytes are those of a Parquet file, see `FilesSource`. Any other type is text.

    Attributes:
        conn_id: Airflow connection.
        query: One SELECT, or the path of a `.sql` file, which Airflow renders.
        parameters: Values for the placeholders of the query, by position or by name, in the style of the driver.
        hook_params: Arguments of the hook, e.g. `{"warehouse": "SMALL"}`.
    """

    type: Literal["sql"]
    conn_id: Annotated[str, Field(min_length=1)]
    query: Annotated[str, Field(min_length=1)]
    parameters: dict[str, Any] | tuple[Any, ...] | None = None
    hook_params: dict[str, Any] = Field(default_factory=dict)

    @field_validator("parameters", mode="before")
    @classmethod
    def _plain_parameters(cls, parameters: Any) -> Any:
        return _texts_of_times(from_text(parameters))


def _texts_of_times(parameters: Any) -> Any:
    """Returns parameters with times and decimals, which a template of native type may be, as texts."""
    if isinstance(parameters, dict):
        return {name: _texts_of_times(value) for name, value in parameters.items()}
    if isinstance(parameters, list | tuple):
        return [*map(_texts_of_times, parameters)]
    return str(parameters) if isinstance(parameters, date | Decimal) else parameters


class RowsSource(_Source):
    """Rows that are part of the spec, for small jobs and tests.

    Attributes:
        rows: The rows; at most 10,000, as they are sent with the spec.
    """

    type: Literal["rows"]
    rows: Annotated[tuple[dict[str, Any], ...], Field(max_length=10_000)]

    @field_validator("rows", mode="before")
    @classmethod
    def _can_be_encoded(cls, rows: Any) -> Any:
        rows = from_text(rows)
        if not isinstance(rows, (list, tuple)):
            return rows
        found = []
        for number, row in enumerate(rows):
            if depth_exceeds(row):
                raise ValueError(f"row {number} is nested more than {MAX_DEPTH} levels deep")
            if (changed := changed_by_json(plain := plain_value(row))) is not None:
                raise ValueError(f"row {number} has {changed}")
            found.append(valid_value(plain))
        _check_types(found)
        return found


def _check_types(rows: list[Any]) -> None:
    if _is_json(rows):
        return
    for number, row in enumerate(rows):
        for name, value in row.items() if isinstance(row, dict) else ():
            if not _is_json(value):
                raise ValueError(
                    f"row {number} has a {type(value).__name__} in {name!r}, which JSON does not have: pass a "
                    "text, a number or a list"
                )


def _is_json(value: Any) -> bool:
    try:
        _JSON.dump_json(value)
    except ValueError:
        return False
    return True


class _QueueSource(_Source):
    """Fields of every queue.

    Attributes:
        value_format: `json` for objects, or `text`.
    """

    on_empty: Literal["fail", "skip", "write"] = "skip"
    max_messages: Annotated[int, Field(ge=1)] | None = None
    value_format: Literal["json", "text"] = "json"

    @model_validator(mode="after")
    def _a_run_may_have_enough_rows(self) -> Self:
        if self.max_messages is not None and self.min_rows > self.max_messages:
            raise ValueError(
                f"`min_rows` is {self.min_rows}, and a run takes no more than `max_messages`, {self.max_messages}"
            )
        return self


class KafkaSource(KafkaCluster, _QueueSource):
    """Messages of Kafka topics, each in one run.

    A run takes what has come since the last run, up to the end of the topics at its start or up to `max_messages`,
    or the messages of a time range. The position is kept below `state_uri`, under the name of the Dag, task and
    map index, or under `name` without Airflow; it moves when the answers are published, and never before. The
    range of a run is kept with it: a run that failed, and one that is cleared, reads the same messages again.

    A row has the fields of the message's value, or `value` with the format `text`, and `kafka_topic`,
    `kafka_partition`, `kafka_offset`, `kafka_timestamp` (Unix time, in milliseconds) and `kafka_key`, which
    replace fields of these names. A message that cannot be parsed goes to the dead letter with them. Needs the
    extra `kafka`.

    Attributes:
        topic: The topic, or several.
        start: Beginning of a time range, by the timestamps of the messages, for a backfill: the position is
            neither used nor moved.
        end: End of the time range, exclusive; both or neither are given.
        max_messages: Maximum number of messages of a run, for all partitions together, which share it equally; the
            next run takes the rest. `None`: no maximum. Refused with a time range.
        first_run: Where a topic without a position begins. `earliest`: with its oldest message; `latest`: with the
            messages that come after the first run.
        on_deleted: Policy for messages that Kafka has deleted before they were read. `fail` fails the job, and
            `skip` goes on with the oldest message that is left.
    """

    type: Literal["kafka"]
    topic: Annotated[tuple[KafkaTopic, ...], Field(max_length=100)]
    key: Annotated[tuple[str, ...], Field(min_length=1)] = ("kafka_topic", "kafka_partition", "kafka_offset")
    start: AwareDatetime | None = None
    end: AwareDatetime | None = None
    first_run: Literal["earliest", "latest"] = "earliest"
    on_deleted: Literal["fail", "skip"] = "fail"
    config_env: str = "LLMBEAM_KAFKA_SOURCE_CONFIG"

    @field_validator("topic", mode="before")
    @classmethod
    def _topics(cls, topic: Any) -> Any:
        found = from_text(topic)
        topics = (found,) if isinstance(found, str) else found
        if isinstance(topics, list | tuple) and not 0 < len(set(map(str, topics))) == len(topics):
            raise ValueError("must be a topic, or several, each once")
        return topics

    @model_validator(mode="after")
    def _time_range_is_complete(self) -> Self:
        if (self.start is None) != (self.end is None):
            raise ValueError("needs both `start` and `end` for a time range, or neither")
        if self.window is not None and self.window[0] >= self.window[1]:
            raise ValueError("has a time range that ends before it begins: `start` must be before `end`")
        if self.window is not None and self.max_messages is not None:
            raise ValueError(
                "must have `max_messages` or a time range, not both: no other run takes the rest of a time range"
            )
        return self

    @property
    def window(self) -> tuple[int, int] | None:
        """The time range as Unix times in milliseconds."""
        return (
            None
            if self.start is None or self.end is None
            else (_milliseconds(self.start), _milliseconds(self.end))
        )


class PubSubSource(_QueueSource):
    """Messages of a Pub/Sub subscription.

    A run takes messages until none is left, or it has `max_messages`. They are written below `state_uri` before
    they are acknowledged, and belong to the job until the answers are published: a run that failed, and is
    repeated, has the same messages, and of a run that is given up the next one has them. A message that is
    delivered again meanwhile is one row. A run that is cleared after its success takes no message, and is skipped.

    A row has the fields of the message's data, or `value` with the format `text`, and `pubsub_message_id`,
    `pubsub_publish_time`, `pubsub_ordering_key` and `pubsub_attributes`, which replace fields of these names. A
    message that cannot be parsed goes to the dead letter with them. The rows are in no order.

    Attributes:
        subscription: Name of the subscription, `projects/…/subscriptions/…`, for this job alone, without push.
        max_messages: Maximum number of messages of a run; the next run takes the rest.
    """

    type: Literal["pubsub"]
    subscription: PubSubSubscription
    key: Annotated[tuple[str, ...], Field(min_length=1)] = ("pubsub_message_id",)
    max_messages: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _with_a_key(data: Any) -> Any:
    """Sets the type of a source without one; a path or a list of rows alone has no key.

    Raises:
        ValueError: It is a path or a list.
    """
    data = from_text(data)
    if isinstance(data, str):
        raise ValueError(
            "needs a key, the columns that identify a row: {'uri': …, 'key': 'id'} instead of the path alone"
        )
    if isinstance(data, list | tuple):
        raise ValueError(
            "needs a key, the columns that identify a row: {'type': 'rows', 'rows': […], 'key': 'id'} instead of "
            "the rows alone"
        )
    return with_type(data, _TYPES)


#: Types by the field that only they have, or that tells them from those below.
_TYPES = {
    "table": "bigquery",
    "rows": "rows",
    "topic": "kafka",
    "subscription": "pubsub",
    "conn_id": "sql",
    "query": "bigquery",
}

Source = Annotated[
    FilesSource | BigQuerySource | SqlSource | RowsSource | KafkaSource | PubSubSource,
    Field(discriminator="type"),
    BeforeValidator(_with_a_key),
]
#: A source that has the same rows whenever it is read.
StoredSource = Annotated[
    FilesSource | BigQuerySource | RowsSource, Field(discriminator="type"), BeforeValidator(_with_a_key)
]


def full_table_name(table: str) -> str:
    """Validates the name of a BigQuery table; one as in a query or as in legacy SQL is understood.

    Raises:
        ValueError: The name is not `project.dataset.table`, or is that of a part of a table or of several ones.
    """
    name = table.replace("`", "")
    parts = (name.replace(":", ".", 1) if name.count(".") == 1 else name).rsplit(".", 2)
    if len(parts) != 3 or not all(parts):
        raise ValueError("must be `project.dataset.table`")
    if sign := re.search(r"[$@*]", parts[2]):
        raise ValueError(
            f"must be `project.dataset.table`, one whole table, without {sign[0]!r}: `source.query` selects "
            "rows of a partition, or of several tables"
        )
    return ".".join(parts)


def sends_failed_rows(source: SpecModel) -> bool:
    """Returns whether the rows of a source are those of a dead letter, selected by their kinds of failure."""
    return isinstance(source, FilesSource) and bool(source.failed_kinds)


def glob_pattern(uri: str) -> re.Pattern[str]:
    """Returns the pattern that the paths of a glob match completely."""
    found, at = "", 0
    for sign in _GLOB.finditer(uri):
        found += re.escape(uri[at : sign.start()]) + _of_sign(sign[0])
        at = sign.end()
    try:
        return re.compile(found + re.escape(uri[at:]), re.DOTALL)
    except re.error:  # `[b-a]`
        return re.compile(re.escape(uri))


def _of_sign(sign: str) -> str:
    if sign[0] != "[":
        return _OF_SIGN.get(sign, ".*")
    is_other = sign[1] == "!"
    signs = re.sub(r"[^\w-]", r"\\\g<0>", sign[1 + is_other : -1])
    return f"[{'^/' if is_other else ''}{signs}]"


def format_of(uri: str) -> FileFormat:
    """Returns the format of the extension of a path (`.csv.gz` is `csv`).

    Raises:
        ValueError: The extension is not known.
    """
    for suffix in reversed(PurePosixPath(uri).suffixes):
        if known := _ENDINGS.get(suffix.lower()):
            return known
    raise ValueError(f"`format` is needed: {uri!r} ends in none of {', '.join(_ENDINGS)}")
