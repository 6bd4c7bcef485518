"""The transaction of the PostgreSQL sink. Only this module and `postgres_session` import psycopg."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import psycopg
from psycopg import errors, sql

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import Row
from airflow_provider_llmbeam.pipeline.sinks.postgres_session import AFTER, BEFORE, Moment, address, session
from airflow_provider_llmbeam.pipeline.sinks.postgres_values import (
    NO_EMPTY_TEXT,
    OUTPUT_TYPES,
    encoder_of,
    types_of,
)
from airflow_provider_llmbeam.spec.sink import PostgresSink

_log = logging.getLogger(__name__)

_STAGED = "llmbeam_staged"
#: PostgreSQL truncates longer names silently.
_MAX_NAME_BYTES = 63
#: Maximum number of keys that an error quotes.
_NAMED = 5
#: Values like those of every answer, in the columns whose values no job decides.
_SAMPLE: Row = {
    "origin": "fresh",
    "fingerprint": "ab" * 32,
    "input_tokens": 1,
    "output_tokens": 1,
    "attempts": 1,
    "latency_seconds": 0.25,
}

#: The condition of all staged rows.
_ALL = sql.SQL("true")

Records = Callable[[], Iterator[Row]]


@dataclass(frozen=True)
class _Column:
    type: str
    must_be_given: bool
    category: str


def check(sink: PostgresSink, columns: OutputColumns) -> None:
    """Runs an upsert without rows, and rolls back."""
    with session(sink, BEFORE) as connection, connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL lock_timeout = '3s'")
        try:
            types = {name: OUTPUT_TYPES.get(name, "text") for name in columns.names}
            _Upsert(connection, sink, columns, BEFORE).run(lambda: iter(()), types)
        except errors.LockNotAvailable:
            _log.warning("Table %r is locked by another session, so it was not checked.", sink.table)


def publish(sink: PostgresSink, columns: OutputColumns, records: Records) -> str:
    """Upserts the records; returns the address of the table."""
    with session(sink, AFTER) as connection:
        with connection.transaction():
            table = _Upsert(connection, sink, columns, AFTER).run(records)
        return f"{address(connection)}/{table}"


class _Upsert:
    def __init__(
        self, connection: psycopg.Connection, sink: PostgresSink, columns: OutputColumns, moment: Moment
    ) -> None:
        self._connection = connection
        self._sink = sink
        self._output = columns
        self._key = columns.key
        self._values = (*columns.passthrough, *columns.outputs)
        self._moment = moment
        self._filled: set[str] = set()

    def run(self, records: Records, types: Mapping[str, str] | None = None) -> str:
        """Upserts the records.

        Args:
            records: Returns the records; called for each pass.
            types: Types of the columns of a new table. `None`: derived from the records.

        Returns:
            The full name of the table.
        """
        self._refuse_names()
        schema, table = self._resolve()
        self._target = sql.Identifier(schema, table)
        self._quoted = self._target.as_string(self._connection)
        # Runs for one table are serialised: they cannot both create it, and their upserts cannot deadlock.
        self._connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"llmbeam:{schema}.{table}",)
        )
        columns = self._columns()
        if columns:
            self._refuse_shape(columns)
            self._refuse_deferrable()
            self._refuse_policies()
            self._refuse_sequences()
            self._refuse_no_partition()
            types = {name: columns[name].type for name in (*self._key, *self._values)}
        else:
            types = types or types_of(self._output, records())
            if types is None:
                _log.info("There is no answer, so the table %r was not created: its types are unknown.", table)
                return f"{schema}.{table}"
            self._create(types)
        staged = self._copy(_STAGED, types, records())
        changed = self._upsert(types)
        if changed < staged:
            self._refuse_unstored(types, staged)
        if columns and self._moment is BEFORE:
            self._copy("llmbeam_sample", {name: types[name] for name in _SAMPLE}, [_SAMPLE])
        if staged:
            _log.info("Table %r: %s of %s rows are new or changed.", f"{schema}.{table}", changed, staged)
        return f"{schema}.{table}"

    def _refuse_names(self) -> None:
        for name in (*self._key, *self._sink.passthrough, *self._sink.table.split(".")):
            encoded = name.encode("utf-8", "replace")
            if encoded.decode() != name or "\0" in name or not 0 < len(encoded) <= _MAX_NAME_BYTES:
                raise self._moment.refusal(
                    f"`sink`: PostgreSQL cannot have a name like {name!r}. Expected 1 to {_MAX_NAME_BYTES} bytes "
                    "of UTF-8 for the table and for each column of `source.key` and `sink.passthrough`."
                )

    def _resolve(self) -> tuple[str, str]:
        """Finds the schema of the table, or the one where an unqualified `CREATE TABLE` would put it."""
        schema, _, table = self._sink.table.rpartition(".")
        if schema:
            return schema, table
        found = self._connection.execute(
            "SELECT coalesce((SELECT nspname FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace"
            " WHERE pg_class.oid = to_regclass(quote_ident(%s))), current_schema())",
            (table,),
        ).fetchone()
        if found is None or found[0] is None:
            raise self._moment.refusal(
                f"`sink.table`: no schema of this user's `search_path` exists. Expected `schema.table`; got "
                f"{table!r}."
            )
        return str(found[0]), table

    def _columns(self) -> dict[str, _Column]:
        rows = self._connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod), (attnotnull OR typnotnull)"
            " AND NOT atthasdef AND attidentity = '' AND typdefault IS NULL, typcategory::text"
            " FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self._quoted,),
        )
        found = {name: _Column(*described) for name, *described in rows}
        self._filled = {name for name, column in found.items() if column.category in NO_EMPTY_TEXT}
        return found

    def _refuse_shape(self, columns: Mapping[str, _Column]) -> None:
        """Rejects an existing table without all output columns: incomplete answers cannot be audited."""
        if missing := [name for name in self._key if name not in columns]:
            raise self._moment.refusal(
                f"`source.key`: table {self._sink.table!r} has no column {missing[0]!r}; it has {[*columns]}. "
                "Expected a table with one row per key."
            )
        if missing := [name for name in self._values if name not in columns]:
            additions = sql.SQL(", ").join(
                sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(name), sql.SQL(OUTPUT_TYPES.get(name, "text")))
                for name in missing
            )
            raise self._moment.refusal(
                f"`sink.table`: table {self._sink.table!r} has no columns {missing}, which every answer carries. "
                f"This adds them: `{self._alter(additions)}`."
            )
        known = {*self._key, *self._values}
        if unknown := [name for name, column in columns.items() if column.must_be_given and name not in known]:
            raise self._moment.refusal(
                f"`sink.table`: column {unknown[0]!r} of table {self._sink.table!r} must not be null and has no "
                "default, and the job has no value for it. Give it a default."
            )

    def _refuse_deferrable(self) -> None:
        """Rejects a deferrable constraint on the key, which ON CONFLICT rejects only with rows.

        Another unique index on the same columns is no help: ON CONFLICT takes all of them.
        """
        found = self._connection.execute(
            "SELECT conname FROM pg_constraint JOIN pg_attribute ON attrelid = conrelid AND attnum = ANY(conkey)"
            " WHERE conrelid = to_regclass(%s) AND condeferrable AND contype IN ('p', 'u') GROUP BY conname"
            " HAVING bool_and(attname = ANY(%s)) AND count(*) = %s ORDER BY conname",
            (self._quoted, [*self._key], len(self._key)),
        ).fetchone()
        if found is not None:
            name = sql.Identifier(found[0])
            change = sql.SQL("DROP CONSTRAINT {}, ADD UNIQUE ({})").format(name, _names(self._key))
            raise self._moment.refusal(
                f"`sink.table`: constraint {found[0]!r} of table {self._sink.table!r} on {[*self._key]} is "
                "deferrable, and PostgreSQL cannot upsert by such a constraint (`ON CONFLICT`). This replaces it: "
                f"`{self._alter(change)}`."
            )

    def _refuse_policies(self) -> None:
        """Rejects row-level security without a policy for a command, which admits no row at all."""
        found = self._connection.execute(
            "SELECT command FROM (VALUES ('SELECT', 'r'), ('INSERT', 'a'), ('UPDATE', 'w')) AS n (command, code)"
            " WHERE row_security_active(to_regclass(%(table)s)) AND NOT EXISTS (SELECT FROM pg_policy"
            " WHERE polrelid = to_regclass(%(table)s) AND polpermissive AND polcmd::text IN ('*', code)"
            " AND EXISTS (SELECT FROM unnest(polroles) AS role WHERE role = 0 OR pg_has_role(role, 'USAGE')))",
            {"table": self._quoted},
        ).fetchall()
        if found:
            commands = ", ".join(command for (command,) in found)
            raise self._moment.refusal(
                f"`sink.table`: table {self._sink.table!r} has row-level security, and no policy for {commands} "
                f"applies to user {self._connection.info.user!r}. Create a policy that admits the rows of the job."
            )

    def _refuse_sequences(self) -> None:
        """Rejects a default from a sequence that the user may not use, as GRANT on a table does not grant it."""
        found = self._connection.execute(
            "SELECT attname, nspname, relname FROM pg_attrdef"
            " JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum"
            " JOIN pg_depend ON classid = 'pg_attrdef'::regclass AND objid = pg_attrdef.oid"
            " JOIN pg_class ON refclassid = 'pg_class'::regclass AND pg_class.oid = refobjid"
            " JOIN pg_namespace ON pg_namespace.oid = relnamespace"
            " WHERE adrelid = to_regclass(%s) AND attname <> ALL(%s)"
            " AND CASE relkind WHEN 'S' THEN NOT has_sequence_privilege(pg_class.oid, 'USAGE, UPDATE') END",
            (self._quoted, [*self._key, *self._values]),
        ).fetchone()
        if found is not None:
            user, sequence = self._connection.info.user, sql.Identifier(*found[1:])
            grant = sql.SQL("GRANT USAGE ON SEQUENCE {} TO {}").format(sequence, sql.Identifier(user))
            raise self._moment.refusal(
                f"`sink.table`: user {user!r} may not use the sequence that fills column {found[0]!r} of table "
                f"{self._sink.table!r}. This allows it: `{grant.as_string(self._connection)}`."
            )

    def _refuse_no_partition(self) -> None:
        found = self._connection.execute(
            "SELECT FROM pg_class WHERE oid = to_regclass(%s) AND relkind = 'p'"
            " AND NOT EXISTS (SELECT FROM pg_partition_tree(oid) WHERE isleaf)",
            (self._quoted,),
        ).fetchone()
        if found is not None:
            raise self._moment.refusal(
                f"`sink.table`: table {self._sink.table!r} is partitioned and has no partition for any row. "
                "Create its partitions first."
            )

    def _create(self, types: Mapping[str, str]) -> None:
        columns = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(types[name])) for name in types]
        self._connection.execute(
            sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(
                self._target, sql.SQL(", ").join(columns), _names(self._key)
            )
        )

    def _copy(self, name: str, types: Mapping[str, str], records: Iterable[Row]) -> int:
        """Copies the records into a temporary table with the types of the target, which casts them."""
        temporary = sql.Identifier("pg_temp", name)
        self._connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                temporary, _names(types), self._target
            )
        )
        encoders = [
            (name, encoder_of(type_, is_key=name in self._key, is_filled=name in self._filled))
            for name, type_ in types.items()
        ]
        count = 0
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(temporary, _names(types))
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for record in records:
                copy.write_row([encode(record[name]) for name, encode in encoders])
                count += 1
        return count

    def _upsert(self, types: Mapping[str, str]) -> int:
        differs = sql.SQL(" WHERE ({}) IS DISTINCT FROM ({})").format(
            self._compared("old", types), self._compared("excluded", types)
        )
        statement = self._insertion(types) + differs
        try:
            with (
                self._connection.transaction()
            ):  # a savepoint, so that the staged rows can be queried after an error
                return self._connection.execute(statement).rowcount
        except errors.InvalidColumnReference:
            addition = sql.SQL("ADD UNIQUE ({})").format(_names(self._key))
            raise self._moment.refusal(
                f"`sink.table`: table {self._sink.table!r} has no unique constraint on {[*self._key]}, so it may "
                f"hold several rows of one key. This adds it: `{self._alter(addition)}`."
            ) from None
        except errors.CardinalityViolation:
            same = sql.SQL("GROUP BY {} HAVING count(*) > 1").format(_names(self._key))
            raise self._moment.refusal(
                f"`source.key`: rows with different keys have one key in table {self._sink.table!r}: "
                f"{self._keys(same)}. Expected columns of a type that tells them apart."
            ) from None

    def _insertion(self, types: Mapping[str, str], condition: sql.Composable = _ALL) -> sql.Composed:
        """Returns the upsert of the staged rows of a condition, without that of the rows to update."""
        return sql.SQL(
            "INSERT INTO {target} AS old ({columns}) SELECT {columns} FROM {staged} AS staged WHERE {condition}"
            " ON CONFLICT ({key}) DO UPDATE SET {changes}"
        ).format(
            target=self._target,
            staged=sql.Identifier("pg_temp", _STAGED),
            columns=_names(types),
            condition=condition,
            key=_names(self._key),
            changes=sql.SQL(", ").join(
                sql.SQL("{name} = excluded.{name}").format(name=sql.Identifier(name)) for name in self._values
            ),
        )

    def _refuse_unstored(self, types: Mapping[str, str], staged: int) -> None:
        """Rejects triggers that keep rows out of the table; rows that they keep as they were are in the log.

        Where a BEFORE trigger returns NULL, PostgreSQL stores nothing, and does not count the row, as it does not
        count one that is equal already. The trigger may have stored the row in a child of the table.
        """
        is_view, triggers = self._triggers()
        if not (is_view or triggers):
            return
        by = f"Trigger {' or '.join(map(repr, triggers))}" if triggers else "A trigger of a table below this view"
        no_row = sql.SQL("NOT EXISTS (SELECT FROM {} AS old WHERE ({}) = ({})").format(
            self._target, _names(self._key, "old"), _names(self._key, "staged")
        )
        unequal = no_row + sql.SQL(" AND NOT ({}) IS DISTINCT FROM ({}))").format(
            self._compared("old", types), self._compared("staged", types)
        )
        if not (unstored := self._unstored(types, unequal)):
            return
        missing = no_row + sql.SQL(")")
        if count := self._unstored(types, missing):
            raise self._moment.refusal(
                f"`sink.table`: table {self._sink.table!r} has no row for {count} of {staged} answers after their "
                f"INSERT: key {self._keys(sql.SQL('WHERE ') + missing)}. Expected a row for each. {by} has "
                "returned NULL, for which PostgreSQL stores nothing: let it return NEW for these rows, or write "
                "to the table that it fills."
            )
        _log.warning(
            "Table %r: %s of %s rows do not have their answers: key %s. %s has returned NULL, for which "
            "PostgreSQL leaves a row as it is.",
            self._sink.table,
            unstored,
            staged,
            self._keys(sql.SQL("WHERE ") + unequal),
            by,
        )

    def _triggers(self) -> tuple[bool, list[str]]:
        """Returns whether the table is a view, and the triggers that may prevent that a row is written."""
        found = self._connection.execute(
            "SELECT relkind = 'v', ARRAY(SELECT DISTINCT tgname::text FROM pg_trigger"
            # 1: for each row; 2: before; 4 and 16: INSERT and UPDATE. Source: catalog/pg_trigger.h
            " WHERE tgtype & 3 = 3 AND tgtype & 20 <> 0 AND tgenabled <> 'D' AND (tgrelid = pg_class.oid"
            " OR tgrelid IN (SELECT relid FROM pg_partition_tree(pg_class.oid))) ORDER BY 1)"
            " FROM pg_class WHERE oid = to_regclass(%s)",
            (self._quoted,),
        ).fetchone()
        return (False, []) if found is None else (found[0], found[1])

    def _unstored(self, types: Mapping[str, str], condition: sql.Composable) -> int:
        """Returns how many staged rows of a condition no statement stores.

        The others have been stored with other values, e.g. a key in lower case: only a second upsert, which is
        rolled back, counts them.
        """
        count = sql.SQL("SELECT count(*) FROM {} AS staged WHERE {}").format(
            sql.Identifier("pg_temp", _STAGED), condition
        )
        ((found,),) = self._connection.execute(count).fetchall()
        if not found:
            return 0
        with self._connection.transaction(force_rollback=True):
            return int(found) - self._connection.execute(self._insertion(types, condition)).rowcount

    def _compared(self, table: str, types: Mapping[str, str]) -> sql.Composed:
        """Returns the compared columns; `json`, unlike `jsonb`, has no equality."""
        return sql.SQL(", ").join(
            sql.SQL("{}::text" if types[name] == "json" else "{}").format(sql.Identifier(table, name))
            for name in self._values
            if name != "origin"
        )

    def _keys(self, which: sql.Composable) -> str:
        """Returns some keys of staged rows, for an error."""
        rows = self._connection.execute(
            sql.SQL("SELECT {key} FROM {staged} AS staged {which} ORDER BY {key} LIMIT {named}").format(
                key=_names(self._key),
                staged=sql.Identifier("pg_temp", _STAGED),
                which=which,
                named=sql.Literal(_NAMED),
            )
        )
        return ", ".join(repr(row[0] if len(row) == 1 else row) for row in rows)

    def _alter(self, change: sql.Composable) -> str:
        return sql.SQL("ALTER TABLE {} {}").format(self._target, change).as_string(self._connection)


def _names(names: Iterable[str], *table: str) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(*table, name) for name in names)
