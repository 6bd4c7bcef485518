"""The PostgreSQL sink: upserts answers in one transaction.

The staged file is streamed by COPY into a temporary table, then upserted by the source's key. Only rows that
differ are written: a second run changes nothing. A different `origin` alone is ignored, as it changes for every
row that a second run takes from the journal.

Measured with PostgreSQL 15 and psycopg 3.3 on two shared cores without fsync, rows of 560 bytes, in rows/s: new
54,000, the same again 78,000, all changed 65,000 at 100,000 rows; 58,000, 59,000 and 29,000 at 1,000,000 rows. The
memory of the process is the same at both.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.records import read_records
from airflow_provider_llmbeam.spec.sink import PostgresSink


def check(sink: PostgresSink, columns: OutputColumns) -> None:
    """Runs all steps of `publish` without rows, and rolls back.

    Errors that would otherwise occur after requests to the model occur now: the address, the password, a missing
    permission, a table that does not fit.

    Args:
        sink: The sink.
        columns: Columns of the answers.

    Raises:
        JobSpecError: The answers could not be published; the message has the reason.
        JobFailedError: The server does not answer; a retry may succeed.
    """
    _client().check(sink, columns)


def publish(sink: PostgresSink, columns: OutputColumns, staged: Mapping[int, str]) -> list[str]:
    """Upserts the staged answers; doing it again changes nothing.

    Args:
        sink: The sink.
        columns: Columns of the answers.
        staged: Address of each file of answer records, as JSON lines.

    Returns:
        The address of the table, without user and password.

    Raises:
        JobFailedError: The server rejected the answers; the table is unchanged, and a retry sends nothing to the
            model.
    """
    address: str = _client().publish(sink, columns, lambda: read_records(staged))
    return [address]


def _client() -> ModuleType:
    try:
        from airflow_provider_llmbeam.pipeline.sinks import postgres_upsert
    except ImportError as error:
        raise JobSpecError(
            f"A sink of type 'postgres' needs `psycopg` ({error}). Install it with "
            "`pip install 'airflow-provider-llmbeam[postgres]'`. Nothing was sent or billed."
        ) from None
    return postgres_upsert
