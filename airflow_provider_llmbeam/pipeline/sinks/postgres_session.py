"""Sessions with PostgreSQL, and its errors without secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.spec.sink import PostgresSink

#: Timeout of a connection attempt.
_CONNECT_TIMEOUT_SECONDS = 10
#: Errors of a connection attempt have no code: texts of permanent errors (`FATAL` of the server, the others of
#: libpq), and texts of temporary errors among them.
_FINAL = ("FATAL", "password", "invalid ", "definition of service")
_TEMPORARY = ("starting up", "shutting down", "recovery", "too many", "connection slots")
#: Maximum number of characters of the values of a row that a constraint refuses.
_MAX_DETAIL = 300


@dataclass(frozen=True)
class Moment:
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


BEFORE = Moment(JobSpecError, "Nothing was sent or billed.")
AFTER = Moment(
    JobFailedError, "Nothing was half written, and the answers are in the journal: a retry sends nothing."
)


@contextmanager
def session(sink: PostgresSink, moment: Moment) -> Iterator[psycopg.Connection]:
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
        # After a wait for the lock of `postgres_upsert`, the next statement must see what its holder committed.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        try:
            yield connection
        except psycopg.Error as error:
            raise _error_of(error, sink, connection, moment) from None


def address(connection: psycopg.Connection) -> str:
    """Returns the address of a connection, without user and password."""
    info = connection.info
    return _address({"host": info.host, "port": info.port, "dbname": info.dbname})


def _address(given: Mapping[str, Any]) -> str:
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


def _parameters(sink: PostgresSink, moment: Moment) -> str:
    dsn = os.environ.get(sink.dsn_env)
    if not dsn:
        raise moment.refusal(
            f"{_field(sink)}: {_holder(sink)} is not set. Expected a connection string, "
            "`postgresql://user:password@host:5432/database`; in Airflow, name a connection in `sink.conn_id`."
        )
    given = _parsed(dsn)
    if given is None:
        raise moment.refusal(
            f"{_field(sink)}: what {_holder(sink)} holds is no connection string. "
            "Expected `postgresql://user:password@host:5432/database?sslmode=require`, where what is special in "
            "user name and password is percent-encoded: `%40` for `@`, `%2F` for `/`."
        )
    own: dict[str, Any] = {"connect_timeout": _CONNECT_TIMEOUT_SECONDS, "application_name": "llmbeam"}
    return make_conninfo(**(own | given | {"client_encoding": "utf8"}))


def _parsed(dsn: str) -> dict[str, Any] | None:
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
    error: psycopg.Error, sink: PostgresSink, connection: psycopg.Connection, moment: Moment
) -> LLMBeamError:
    message = error.diag.message_primary or _message_of(error) or type(error).__name__
    at = f" at {error.diag.context}" if isinstance(error, psycopg.DataError) and error.diag.context else ""
    code = f" ({error.sqlstate})" if error.sqlstate else ""
    fault = f"`sink.table`: PostgreSQL refused {sink.table!r}: {message}{at}{code}."
    match error:
        case errors.InsufficientPrivilege():
            fault += (
                f" User {connection.info.user!r} needs SELECT, INSERT and UPDATE on the table, or CREATE on the "
                "schema where the job makes it."
            )
        case errors.InvalidSchemaName():
            fault += " Create the schema first; the job creates only the table."
        case psycopg.DataError():
            fault += " A value does not fit the table: alter the column, e.g. to text."
        case errors.ForeignKeyViolation():
            fault += f"{_detail(error)} Insert the row that it refers to, or drop the constraint."
        case errors.CheckViolation() if error.diag.constraint_name is None:
            fault += f"{_detail(error)} Create a partition that takes it, e.g. `PARTITION OF … DEFAULT`."
        case errors.UniqueViolation() | errors.ExclusionViolation():
            fault += f"{_detail(error)} Change the row that has it, or drop the constraint."
        case psycopg.IntegrityError():
            fault += " A row does not keep to a constraint of the table: change the row or the constraint."
        case errors.ObjectNotInPrerequisiteState():
            pass
        case psycopg.OperationalError():
            return moment.failure(fault)
    return moment.refusal(fault)


def _detail(error: psycopg.Error) -> str:
    """Returns the values of the first row that a constraint refuses, in the columns of the constraint."""
    detail = error.diag.message_detail or ""
    return f" {detail if len(detail) <= _MAX_DETAIL else detail[:_MAX_DETAIL] + '…'}" if detail else ""


def _message_of(error: psycopg.Error) -> str:
    """Returns the message of an error, without the indented hints of libpq."""
    return " ".join(line.strip() for line in str(error).splitlines() if not line.startswith("\t")).rstrip(".")
