"""The PostgreSQL sink: upserts answers in one transaction. The only module that imports psycopg.

The staged file is streamed by COPY into a temporary table, then upserted by the source's key. Only rows that
differ are written: a second run changes nothing. A different `llmbeam_origin` alone is ignored, as it
changes for every row that a second run takes from the journal.

Errors are those of the server, with the statement that corrects the usual ones. Before a job sends anything, the
upsert of a sample row is rehearsed and rolled back. What only the values of the rows can show, e.g. a missing
partition, concerns these rows: they are handed back, and all others are stored.

Measured with PostgreSQL 15 and psycopg 3.3 on two shared cores without fsync, rows of 560 bytes, in rows/s: new
54,000, the same again 78,000, all changed 65,000 at 100,000 rows; 58,000, 59,000 and 29,000 at 1,000,000 rows. The
memory of the process is the same at both.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.pipeline.columns import OutputColumns, absent_columns, leave_out
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.records import read_records
from airflow_provider_llmbeam.pipeline.sinks import key_types
from airflow_provider_llmbeam.pipeline.sinks.key_types import KeyTypes
from airflow_provider_llmbeam.pipeline.sinks.refused import Refuse, store_each
from airflow_provider_llmbeam.pipeline.staged_bytes import bytes_of, without_bytes
from airflow_provider_llmbeam.spec.sink import PostgresSink

_log = logging.getLogger(__name__)

_STAGED = "llmbeam_staged"
#: Column of the temporary table: position of the answer in the staged file.
_NUMBER = "llmbeam_number"
#: Answers per COPY; all of them are in memory.
_COPIED = 1000
#: The condition of all staged rows; without one, ON CONFLICT would be read as that of a JOIN.
_ALL = sql.SQL("WHERE true")
#: PostgreSQL truncates longer names silently.
_MAX_NAME_BYTES = 63
#: Maximum number of characters of the values of a row that a constraint refuses.
_MAX_DETAIL = 300
#: Timeout of a connection attempt.
_CONNECT_TIMEOUT_SECONDS = 10
#: Errors of a connection attempt have no code: texts of permanent errors (`FATAL` of the server, the others of
#: libpq), and texts of temporary errors among them.
_FINAL = ("FATAL", "password", "invalid ", "definition of service")
_TEMPORARY = ("starting up", "shutting down", "recovery", "too many", "connection slots")
#: Classes of errors that the values of a row cause: cardinality, data, integrity, WITH CHECK OPTION, limits, and
#: what a trigger raises. Source: postgresql.org/docs, "PostgreSQL Error Codes".
_OF_A_ROW = ("21", "22", "23", "44", "54", "P0")
_COLUMN = re.compile(r", column ([^:]+)")

_TYPES = {"bytes": "text", "boolean": "boolean", "integer": "bigint", "number": "double precision", "text": "text"}
#: Types of a new table; `answer` is `jsonb` if it has a schema.
OUTPUT_TYPES = {column: _TYPES[kind] for column, kind in key_types.OUTPUT_TYPES.items()}
#: Values like those of every answer, in the columns whose values no job decides.
_SAMPLE: Row = {
    "llmbeam_origin": "fresh",
    "llmbeam_fingerprint": "ab" * 32,
    "llmbeam_input_tokens": 1,
    "llmbeam_output_tokens": 1,
    "llmbeam_attempts": 1,
    "llmbeam_latency_seconds": 0.25,
}
#: Values of the other columns of the sample, by the first word of their type; `0` is a value of most other types.
_SAMPLES = {"date": "epoch", "timestamp": "epoch", "time": "00:00", "uuid": "0" * 32}

_JSON = ("json", "jsonb")
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
#: First words of further types without an empty text.
_NO_TEXTS = frozenset({"numeric", "real", "double", "boolean", "date", "time", "timestamp", "interval", "uuid"})
#: Categories of types without an empty text, such as enums (E), addresses of networks (I) and ranges (R). Source:
#: postgresql.org/docs, table "typcategory Codes".
_NO_EMPTY_TEXT = frozenset("BCDEGINRT")
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
#: NUL in JSON; after an even number of backslashes, as it is text otherwise.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")

_Records = Callable[[], Iterable[Row]]


@dataclass(frozen=True)
class _Moment:
    """The moment of an error: before or after requests to the model.

    Attributes:
        error: Class of errors that a retry would repeat.
        kept: Last sentence of each message.
    """

    error: type[LLMBeamError]
    kept: str

    def refusal(self, fault: str) -> LLMBeamError:
        """Returns an error that a retry would repeat."""
        return self.error(f"{fault} {self.kept}")

    def failure(self, fault: str) -> LLMBeamError:
        """Returns an error that may be temporary."""
        return JobFailedError(f"{fault} {self.kept}")


_BEFORE = _Moment(JobSpecError, JobSpecError.remains)
_AFTER = _Moment(
    JobFailedError, "Nothing was half written, and the answers are in the journal: a retry sends nothing."
)


def check(sink: PostgresSink, columns: OutputColumns) -> None:
    """Rehearses `publish` with a sample row, and rolls back.

    Errors that would otherwise occur after requests to the model occur now: the address, the password, a missing
    permission, a table that does not fit.

    Args:
        sink: The sink.
        columns: Columns of the answers.

    Raises:
        JobSpecError: The answers could not be published; the message has the reason.
        JobFailedError: The server does not answer; a retry may succeed.
    """
    with _open_session(sink, _BEFORE) as connection, connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL lock_timeout = '3s'")
        try:
            _Upsert(connection, sink, columns, _BEFORE).rehearse()
        except errors.LockNotAvailable:
            _log.warning("Table %r is locked by another session, so it was not checked.", sink.table)


def publish(sink: PostgresSink, columns: OutputColumns, staged: Mapping[int, str], refuse: Refuse) -> list[str]:
    """Upserts the staged answers; doing it again changes nothing.

    Args:
        sink: The sink.
        columns: Columns of the answers.
        staged: Address of each file of answer records, as JSON lines.
        refuse: Takes each answer that the server refuses.

    Returns:
        The address of the table, without user and password.

    Raises:
        JobFailedError: The server rejected the upsert; the table is unchanged, and a retry sends nothing to the
            model.
    """
    with _open_session(sink, _AFTER) as connection:
        with connection.transaction():
            table = _Upsert(connection, sink, columns, _AFTER, refuse).run(lambda: read_records(staged))
        info = connection.info
        return [f"{_address({'host': info.host, 'port': info.port, 'dbname': info.dbname})}/{table}"]


class _Upsert:
    """One transaction that writes to the table of a sink."""

    def __init__(
        self,
        connection: psycopg.Connection,
        sink: PostgresSink,
        columns: OutputColumns,
        moment: _Moment,
        refuse: Refuse = lambda _, __: None,
    ) -> None:
        self._connection = connection
        self._sink = sink
        self._output = columns
        self._key = columns.key
        self._values = (*columns.passthrough, *columns.outputs)
        self._moment = moment
        self._refuse = refuse
        self._without_empty: set[str] = set()
        #: Columns that need a value, and have one of the author's own in a row that is there.
        self._kept: list[str] = []
        self._changed = 0

    def run(self, records: _Records) -> str:
        """Upserts the records, which are read once more for the types of a new table; returns the table's name."""
        name = self._find_table()
        types: dict[str, str] | None = self._find_types()
        if not types:
            derived = derive_types(self._output, self._sink, records())
            if derived is None:
                _log.info("There is no answer, so the table %r was not created: its types are unknown.", name)
                return name
            types = derived
            self._create(types)
        self._make(_STAGED, types)
        count, copied = 0, 0
        rows = iter(records())
        while chunk := [*itertools.islice(rows, _COPIED)]:
            copied += self._copy(types, chunk, count)
            count += len(chunk)
        self._upsert(types, count)
        if self._changed < copied:
            self._refuse_unstored(types)
        if count:
            _log.info("Table %r: %s of %s rows are new or changed.", name, self._changed, count)
        return name

    def rehearse(self) -> None:
        """Upserts no row, and then a sample row, which PostgreSQL also checks for what it checks row by row."""
        self._find_table()
        types = self._find_types()
        if not types:
            types = dict.fromkeys(self._output.from_source, "text") | output_types(self._output, self._sink)
            self._create(types)
        self._make(_STAGED, types)
        self._insert(types, 0, 0)
        known = _SAMPLE if (length := self._output.dimensions) is None else {**_SAMPLE, "answer": [0.0] * length}
        if sampled := {name: types[name] for name in known if name in types}:
            self._make("llmbeam_sample", sampled)
            self._fill("llmbeam_sample", sampled, [known])
        sample = {name: _sample_of(type_) for name, type_ in types.items()} | known
        try:
            with self._connection.transaction():
                self._fill(_STAGED, types, [sample])
                self._connection.execute(self._insertion(types))
        except psycopg.Error as error:
            if self._is_of_every_row(error):
                raise

    def _is_of_every_row(self, error: psycopg.Error) -> bool:
        """Returns whether any row would be refused as the sample was, and not only one with its values."""
        match error:
            case errors.NotNullViolation():
                return error.diag.column_name not in self._filled
            case errors.InsufficientPrivilege():  # a policy admits rows by their values
                return error.diag.source_function != "ExecWithCheckOptions"
        # Class 42 is "Syntax Error or Access Rule Violation". What a trigger raises has any other code.
        return isinstance(error, psycopg.OperationalError) or (error.sqlstate or "").startswith("42")

    def _find_table(self) -> str:
        """Finds the table, or the schema where `CREATE TABLE` would put it; returns its full name.

        Runs for one table wait for each other: they cannot both create it, and their upserts cannot deadlock.
        """
        for name in (*self._key, *self._sink.passthrough, *self._sink.table.split(".")):
            encoded = name.encode("utf-8", "replace")
            if encoded.decode() != name or "\0" in name or not 0 < len(encoded) <= _MAX_NAME_BYTES:
                raise self._moment.refusal(
                    f"`sink`: PostgreSQL cannot have a name like {name!r}. Expected 1 to {_MAX_NAME_BYTES} bytes "
                    "of UTF-8 for the table and for each column of `source.key` and `sink.passthrough`."
                )
        schema, _, table = self._sink.table.rpartition(".")
        if not schema:
            ((schema,),) = self._connection.execute(
                "SELECT coalesce((SELECT nspname FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace"
                " WHERE pg_class.oid = to_regclass(quote_ident(%s))), current_schema())",
                (table,),
            ).fetchall()
        # Without a schema in the `search_path`, CREATE TABLE says so.
        self._target = sql.Identifier(*(name for name in (schema, table) if name))
        self._connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"llmbeam:{schema}.{table}",)
        )
        return f"{schema}.{table}"

    def _find_types(self) -> dict[str, str]:
        """Returns the types of the answers' columns in an existing table; none if it does not exist."""
        rows = self._connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attgenerated <> '', typcategory::text,"
            " attnotnull AND NOT atthasdef AND attidentity = ''"
            " FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self._target.as_string(self._connection),),
        ).fetchall()
        found = {name: type_ for name, type_, *_ in rows}
        if found:
            absent = leave_out(self._values, found, self._sink.table)
            self._values = tuple(name for name in self._values if name not in absent)
        names = (*self._key, *self._values)
        self._filled = {*names, *(name for name, _, is_generated, *_ in rows if is_generated)}
        self._without_empty = {name for name, _, _, category, _ in rows if category in _NO_EMPTY_TEXT}
        needed = [name for name, *_, is_needed in rows if is_needed and name not in names]
        if needed and self._connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(self._target)).rowcount:
            self._kept = needed
            self._filled.update(needed)
        missing = [name for name in names if found and name not in found]
        if missing and missing[0] in self._key:
            raise self._moment.refusal(
                f"`source.key`: table {self._sink.table!r} has no column {missing[0]!r}; it has {[*found]}. "
                "Expected a table with one row per key."
            )
        if missing:
            wanted = output_types(self._output, self._sink)
            additions = sql.SQL(", ").join(
                sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(name), sql.SQL(wanted.get(name, "text")))
                for name in missing
            )
            raise self._moment.refusal(
                f"`sink.table`: table {self._sink.table!r} has {absent_columns(missing)}, which every answer has. "
                f"Run: `{self._alter(additions)}`."
            )
        return {name: found[name] for name in names if found}

    def _create(self, types: Mapping[str, str]) -> None:
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(types[name])) for name in types]
        self._connection.execute(
            sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(
                self._target, sql.SQL(", ").join(columns), _names(self._key)
            )
        )

    def _make(self, name: str, types: Mapping[str, str]) -> None:
        """Makes a temporary table with the types of the target, which casts what is copied into it."""
        self._connection.execute(
            sql.SQL(
                "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {}, 0::bigint AS {} FROM {} WITH NO DATA"
            ).format(sql.Identifier("pg_temp", name), _names(types), sql.Identifier(_NUMBER), self._target)
        )

    def _copy(self, types: Mapping[str, str], records: Sequence[Row], number: int) -> int:
        """Copies the records but those that the table refuses; returns their number."""
        copied = 0

        def copy(first: int, end: int) -> str | None:
            nonlocal copied
            try:
                with self._connection.transaction():
                    self._fill(_STAGED, types, records[first - number : end - number], first)
            except psycopg.Error as error:
                return self._reason(error)
            copied += end - first
            return None

        store_each(number, number + len(records), copy, self._refuse)
        return copied

    def _fill(self, name: str, types: Mapping[str, str], records: Iterable[Row], number: int = 0) -> None:
        encoders = [
            (column, encoder_of(type_, is_key=column in self._key, has_empty=column not in self._without_empty))
            for column, type_ in types.items()
        ]
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier("pg_temp", name), _names([*types, _NUMBER])
        )
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for position, record in enumerate(records, number):
                copy.write_row([*(encode(record[column]) for column, encode in encoders), position])

    def _reason(self, error: psycopg.Error) -> str:
        """Returns why the server refuses a row.

        Raises:
            psycopg.Error: The error is not that of a row.
        """
        is_of_policy = error.diag.source_function == "ExecWithCheckOptions"
        # COPY names the column whose value has no meaning in its type, whatever the class of the error.
        is_of_value = isinstance(error, psycopg.ProgrammingError) and _COLUMN.search(error.diag.context or "")
        if is_of_policy or is_of_value or (error.sqlstate or "").startswith(_OF_A_ROW):
            return _fault_of(error, self._sink, self._connection)
        raise error

    def _upsert(self, types: Mapping[str, str], count: int) -> None:
        """Writes the staged rows that differ, but those that the table refuses."""

        def upsert(first: int, end: int) -> str | None:
            try:
                # a savepoint, so that the staged rows can be queried after an error
                with self._connection.transaction():
                    self._changed += self._insert(types, first, end)
            except psycopg.Error as error:
                return self._reason(error)
            return None

        self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # while the row can still be found
        if upsert(0, count) is not None:
            self._connection.execute(
                sql.SQL("CREATE INDEX ON {} ({})").format(
                    sql.Identifier("pg_temp", _STAGED), sql.Identifier(_NUMBER)
                )
            )
            self._refuse_same_keys()  # which would overwrite each other in statements of their own
            store_each(0, count, upsert, self._refuse_staged)

    def _insert(self, types: Mapping[str, str], first: int, end: int) -> int:
        """Writes the rows of a range that differ; returns their number."""
        old, new = (
            # `json`, unlike `jsonb`, has no equality.
            sql.SQL(", ").join(
                sql.SQL("{}::text" if types[name] == "json" else "{}").format(sql.Identifier(row, name))
                for name in self._values
                if name != "llmbeam_origin"
            )
            for row in ("old", "excluded")
        )
        where = sql.SQL("WHERE {} >= {} AND {} < {}").format(
            sql.Identifier(_NUMBER), sql.Literal(first), sql.Identifier(_NUMBER), sql.Literal(end)
        )
        statement = self._insertion(types, where) + sql.SQL(" WHERE ({}) IS DISTINCT FROM ({})").format(old, new)
        try:
            return self._connection.execute(statement).rowcount
        except errors.InvalidColumnReference:
            addition = sql.SQL("ADD UNIQUE ({})").format(_names(self._key))
            raise self._moment.refusal(
                f"`sink.table`: table {self._sink.table!r} has no unique constraint on {[*self._key]}, so it may "
                f"hold several rows of one key. This adds it: `{self._alter(addition)}`."
            ) from None

    def _refuse_staged(self, number: int, reason: str) -> None:
        self._connection.execute(
            sql.SQL("DELETE FROM {} WHERE {} = {}").format(
                sql.Identifier("pg_temp", _STAGED), sql.Identifier(_NUMBER), sql.Literal(number)
            )
        )
        self._refuse(number, reason)

    def _refuse_same_keys(self) -> None:
        """Refuses rows with different keys that have one key in the table; none of them is chosen."""
        statement = sql.SQL(
            "DELETE FROM {staged} WHERE ({key}) IN (SELECT {key} FROM {staged} GROUP BY {key} HAVING count(*) > 1)"
            " RETURNING {number}, {texts}"
        ).format(
            staged=sql.Identifier("pg_temp", _STAGED),
            key=_names(self._key),
            number=sql.Identifier(_NUMBER),
            # Python has no date for 'infinity' or 44 BC.
            texts=sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in self._key),
        )
        for number, *key in self._connection.execute(statement).fetchall():
            self._refuse(
                number,
                f"Rows with different keys have one key in table {self._sink.table!r}: "
                f"{key[0] if len(key) == 1 else tuple(key)!r}. Expected columns of a type that tells them apart.",
            )

    def _insertion(self, types: Mapping[str, str], where: sql.Composable = _ALL) -> sql.Composed:
        """Returns the upsert of staged rows, without the condition of the rows to update."""
        rows = sql.SQL("{} AS staged").format(sql.Identifier("pg_temp", _STAGED))
        if self._kept:  # PostgreSQL checks them also where the row is there, and is updated
            rows += sql.SQL(" LEFT JOIN {} AS kept ON ({}) = ({})").format(
                self._target, _names(self._key, "kept"), _names(self._key, "staged")
            )
        return sql.SQL(
            "INSERT INTO {target} AS old ({columns}) SELECT {values} FROM {rows} {where}"
            " ON CONFLICT ({key}) DO UPDATE SET {changes}"
        ).format(
            target=self._target,
            rows=rows,
            columns=_names([*types, *self._kept]),
            values=sql.SQL(", ").join(
                [
                    *(sql.Identifier("staged", name) for name in types),
                    *(sql.Identifier("kept", name) for name in self._kept),
                ]
            ),
            where=where,
            key=_names(self._key),
            changes=sql.SQL(", ").join(
                sql.SQL("{name} = excluded.{name}").format(name=sql.Identifier(name)) for name in self._values
            ),
        )

    def _refuse_unstored(self, types: Mapping[str, str]) -> None:
        """Refuses answers for which the table has no row: PostgreSQL stores none where a trigger returns NULL.

        It does not count such a row, as it does not count one that is equal already. A row that a trigger has
        stored with another key, e.g. in lower case, is counted by a second upsert, which is rolled back.
        """
        missing = sql.SQL("WHERE NOT EXISTS (SELECT FROM {} AS old WHERE ({}) = ({}))").format(
            self._target, _names(self._key, "old"), _names(self._key, "staged")
        )
        query = sql.SQL("SELECT {} FROM {} AS staged {}").format(
            sql.Identifier(_NUMBER), sql.Identifier("pg_temp", _STAGED), missing
        )
        numbers = [number for (number,) in self._connection.execute(query).fetchall()]
        if not numbers or self._count(self._insertion(types, missing)) == len(numbers):
            return
        for number in sorted(numbers):
            one = sql.SQL("WHERE {} = {}").format(sql.Identifier(_NUMBER), sql.Literal(number))
            if not self._count(self._insertion(types, one)):
                self._refuse(
                    number,
                    f"Table {self._sink.table!r} has no row for the answer after its INSERT. A trigger has "
                    "returned NULL, for which PostgreSQL stores nothing: let it return NEW for the row, or write "
                    "to the table that it fills.",
                )

    def _count(self, statement: sql.Composed) -> int:
        """Returns the number of rows that a statement would write."""
        with self._connection.transaction(force_rollback=True):
            return self._connection.execute(statement).rowcount

    def _alter(self, change: sql.Composable) -> str:
        return sql.SQL("ALTER TABLE {} {}").format(self._target, change).as_string(self._connection)


def _names(names: Iterable[str], *table: str) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(*table, name) for name in names)


def _sample_of(type_: str) -> str:
    """Returns a value of a column of which only the type is known; one of a rare type does not fit."""
    return "{}" if type_.endswith("[]") else _SAMPLES.get(type_.partition("(")[0].partition(" ")[0], "0")


@contextmanager
def _open_session(sink: PostgresSink, moment: _Moment) -> Iterator[psycopg.Connection]:
    """Opens a connection without implicit transactions, and converts errors of the server.

    Raises:
        LLMBeamError: An error of the class of `moment`.
    """
    given = _parameters(sink, moment)
    try:
        # Without prepared statements it also works through a pool of connections, e.g. pgbouncer.
        connection = psycopg.connect(given, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        message = _message_of(error)
        fault = (
            f"{_field(sink)}: no connection to {_address(conninfo_to_dict(given))}: {message}. Expected a server "
            f"that accepts what {_holder(sink)} holds."
        )
        is_final = any(text in message for text in _FINAL) and not any(text in message for text in _TEMPORARY)
        raise (moment.refusal(fault) if is_final else moment.failure(fault)) from None
    with closing(connection):
        # After a wait for the lock of an upsert, the next statement must see what its holder committed.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        try:
            yield connection
        except psycopg.Error as error:
            raise _error_of(error, sink, connection, moment) from None


def _address(given: Mapping[str, Any]) -> str:
    """Returns the address of a database, without user and password."""
    host, port, database = (given.get(name) or "" for name in ("host", "port", "dbname"))
    return f"postgres://{quote(str(host), safe=',')}{f':{port}' if port else ''}/{quote(str(database), safe='')}"


def _field(sink: PostgresSink) -> str:
    return "`sink.dsn_env`" if sink.conn_id is None else "`sink.conn_id`"


def _holder(sink: PostgresSink) -> str:
    """Returns what has the connection string: for a task it is the Airflow connection that the author named."""
    if sink.conn_id is None:
        return f"the environment variable {sink.dsn_env!r}"
    in_task = f"the Airflow connection {sink.conn_id!r}"
    return in_task if sink.dsn_env in os.environ else f"{in_task}, in the environment variable {sink.dsn_env!r},"


def _parameters(sink: PostgresSink, moment: _Moment) -> str:
    dsn = os.environ.get(sink.dsn_env)
    if not dsn:
        raise moment.refusal(
            f"{_field(sink)}: {_holder(sink)} is not set. Expected a connection string, "
            "`postgresql://user:password@host:5432/database`; in Airflow, name a connection in `sink.conn_id`."
        )
    given = _parse_dsn(dsn)
    if given is None:
        raise moment.refusal(
            f"{_field(sink)}: what {_holder(sink)} holds is no connection string. "
            "Expected `postgresql://user:password@host:5432/database?sslmode=require`, where what is special in "
            "user name and password is percent-encoded: `%40` for `@`, `%2F` for `/`."
        )
    own: dict[str, Any] = {"connect_timeout": _CONNECT_TIMEOUT_SECONDS, "application_name": "llmbeam"}
    return make_conninfo(**(own | given | {"client_encoding": "utf8"}))


def _parse_dsn(dsn: str) -> dict[str, Any] | None:
    """Parses a connection string; `None` if libpq would read a part of the password as a host and quote it."""
    scheme, _, rest = dsn.partition("://")
    # For libpq the password ends at the first `@`, and there is none where a `/` comes before.
    if scheme in ("postgresql", "postgres") and (rest.count("@") > 1 or "@" in rest.partition("/")[2]):
        return None
    try:
        given = conninfo_to_dict(dsn)
    except (psycopg.ProgrammingError, UnicodeError):  # the latter for `%aa`, which is no UTF-8
        return None
    ports = str(given.get("port") or "").split(",")
    return given if all(port.isdecimal() or not port for port in ports) else None


def _error_of(
    error: psycopg.Error, sink: PostgresSink, connection: psycopg.Connection, moment: _Moment
) -> LLMBeamError:
    """Returns the error of the server."""
    fault = f"`sink.table`: {_fault_of(error, sink, connection)}"
    if isinstance(error, psycopg.OperationalError) and not isinstance(error, errors.ObjectNotInPrerequisiteState):
        return moment.failure(fault)
    return moment.refusal(fault)


def _fault_of(error: psycopg.Error, sink: PostgresSink, connection: psycopg.Connection) -> str:
    """Returns what the server says, with its details where these are not the whole row, and what to do."""
    message = error.diag.message_primary or _message_of(error) or type(error).__name__
    column = _COLUMN.search(error.diag.context or "")
    at = f" in column {column[1]}" if column is not None else ""
    code = f" ({error.sqlstate})" if error.sqlstate else ""
    fault = f"PostgreSQL refused {sink.table!r}: {message}{at}{code}."
    match error:
        case errors.InsufficientPrivilege():
            fault += (
                f" User {connection.info.user!r} needs SELECT, INSERT and UPDATE on the table and USAGE on its "
                "sequences, or CREATE on the schema where the job makes it."
            )
        case errors.UndefinedObject() if 'type "vector"' in message:
            fault += " Create the extension of pgvector first, as a user who may: `CREATE EXTENSION vector`."
        case errors.InvalidSchemaName():
            fault += " Create the schema first; the job creates only the table."
        case psycopg.DataError():
            fault += " A value does not fit the table: alter the column, e.g. to text."
        case errors.NotNullViolation():
            fault += " Give the column a default, or the table a row with this key."
        case errors.CheckViolation() if error.diag.constraint_name is not None:
            fault += " Change the row or the constraint."
        case psycopg.IntegrityError():
            detail = error.diag.message_detail or ""
            fault += f" {detail if len(detail) <= _MAX_DETAIL else detail[:_MAX_DETAIL] + '…'}" if detail else ""
    return fault


def _message_of(error: psycopg.Error) -> str:
    """Returns the message of an error, without the indented hints of libpq."""
    return " ".join(line.strip() for line in str(error).splitlines() if not line.startswith("\t")).rstrip(".")


def derive_types(columns: OutputColumns, sink: PostgresSink, records: Iterable[Row]) -> dict[str, str] | None:
    """Derives the types of a new table from the records; `None` without records.

    Args:
        columns: The columns.
        sink: The sink.
        records: The records.
    """
    types, structured, lengths = KeyTypes(columns.from_source), True, Counter[int]()
    for record in records:
        types.add(record)
        structured = structured and not isinstance(record.get("answer"), str)
        lengths[len(record["answer"]) if columns.has_vectors else 0] += 1
    if not lengths:
        return None
    keys = {column: _TYPES[found] for column, found in types.types().items()}
    ((length, _),) = lengths.most_common(1)
    outputs = output_types(columns, sink, length)
    return keys | outputs | ({"answer": "jsonb"} if structured and outputs.get("answer") == "text" else {})


def output_types(columns: OutputColumns, sink: PostgresSink, dimensions: int | None = None) -> dict[str, str]:
    """Returns the types of the columns of a new table besides those of the source.

    Args:
        columns: The columns.
        sink: The sink.
        dimensions: Length of the vectors; `None`: that of the columns, or unknown.
    """
    length = dimensions or columns.dimensions
    if (fields := columns.fields) is not None:
        answer = {name: _TYPES.get(kind.kind, "jsonb") for name, kind in fields}
    elif columns.has_vectors and sink.vector_type == "vector":
        answer = {"answer": "vector" if length is None else f"vector({length})"}
    else:
        answer = {"answer": OUTPUT_TYPES["answer"]}
    return answer | {name: OUTPUT_TYPES[name] for name in columns.after_answer}


def encoder_of(type_: str, *, is_key: bool = False, has_empty: bool = True) -> Callable[[Any], str | None]:
    """Returns the function that encodes values for a column.

    Args:
        type_: Type of the column, as PostgreSQL formats it.
        is_key: Whether it is a key column, which has no nulls: an empty text stays one there.
        has_empty: Whether a value of the type may be an empty text, see `_NO_EMPTY_TEXT`.
    """
    if type_ == "bytea":
        return _as_bytea
    encode = _encoder_of(type_, is_key=is_key, has_empty=has_empty)
    return lambda value: encode(without_bytes(value))


def _encoder_of(type_: str, *, is_key: bool, has_empty: bool) -> Callable[[Any], str | None]:
    if type_.endswith("[]"):
        return partial(_as_array, element=encoder_of(type_.removesuffix("[]")))
    if type_ in _JSON:
        return as_json
    name = type_.partition("(")[0].partition(" ")[0]
    if name in _INTEGERS:
        return partial(_as_other, is_key=is_key, is_integer=True)
    return as_text if has_empty and name not in _NO_TEXTS else partial(_as_other, is_key=is_key)


def _as_bytea(value: Any) -> str | None:
    """Encodes bytes; any other value is text in the syntax of the type."""
    content = bytes_of(value)
    return as_text(value) if content is None else f"\\x{content.hex()}"


def _as_other(value: Any, *, is_key: bool, is_integer: bool = False) -> str | None:
    """Encodes a value for a type that no empty text belongs to, which is what CSV has for no value."""
    if value == "" and not is_key:
        return None
    # An integer column with nulls is one of doubles for pandas, and for what it writes.
    return str(int(value)) if is_integer and isinstance(value, float) and value.is_integer() else as_text(value)


def _as_array(value: Any, element: Callable[[Any], str | None]) -> str | None:
    """Encodes a list for a column of arrays; a text is its literal already."""
    if not isinstance(value, list):
        return None if value == "" else as_text(value)
    return f"{{{','.join(_as_element(each, element) for each in value)}}}"


def _as_element(value: Any, element: Callable[[Any], str | None]) -> str:
    if isinstance(value, list):
        return str(_as_array(value, element))
    text = element(value)
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def as_text(value: Any) -> str | None:
    """Encodes a value for a column of texts."""
    if value is None:
        return None
    if isinstance(value, float):  # also NaN and infinity, which PostgreSQL has and JSON has not
        return repr(value)
    return _clean(value if isinstance(value, str) else _to_json(value))


def as_json(value: Any) -> str | None:
    """Encodes a value for a JSON column."""
    if value is None:
        return None
    text = _to_json(value)
    return _clean(_NUL.sub("\\1\ufffd", text) if "\\u0000" in text else text)


def _to_json(value: Any) -> str:
    try:
        return _encode(value)
    except ValueError:  # 1e999 is valid JSON, but infinite in Python, which JSON cannot represent
        return _encode(json.loads(json.dumps(value), parse_constant=lambda _: None))


def _clean(text: str) -> str:
    """Replaces characters that PostgreSQL cannot store: NUL, and half of a surrogate pair."""
    if text.isascii():
        return text.replace("\0", "\ufffd")
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
