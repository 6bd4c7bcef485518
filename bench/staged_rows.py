r"""Measures the staging of a query: `python -m bench.staged_rows postgresql://… [--rows 100000 1000000]`.

Makes tables of tickets in a PostgreSQL database, and reads each by `psql \copy` to a CSV file, and by the staging
of a task to Parquet files, each in a new process. Prints the rows per second, and the memory of the staging.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_llmbeam.hooks import sql as hook_module
from airflow_provider_llmbeam.hooks.storage import ObjectStorage
from airflow_provider_llmbeam.jobs.stage import stage_rows
from airflow_provider_llmbeam.spec import JobSpec
from bench.machine import speed

_TABLE = """
CREATE TABLE {} AS SELECT id, 'ticket ' || id || repeat(' of a customer', 10) AS text,
    (id % 1000)::numeric(10, 2) AS price,
    timestamptz '2026-01-01' + id * interval '1 second' AS created_at, id % 2 = 0 AS is_paid
FROM generate_series(1, {}) AS id
"""


class _Hook:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def get_conn(self) -> Any:
        return psycopg.connect(self._dsn)


def main() -> None:
    """Measures and prints the figures, or stages one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dsn", help="connection string of a database in which tables may be made")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N")
    parser.add_argument("--stage", metavar="TABLE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage is not None:
        _stage(options.dsn, options.stage)
        return
    _print(f"{os.cpu_count()} cores, {speed()}")
    for rows in options.rows:
        for line in measure(options.dsn, rows):
            _print(f"{rows:,} rows: {line}")


def measure(dsn: str, rows: int) -> list[str]:
    """Reads a table in both ways; returns a line of text about each.

    Raises:
        ValueError: A row is missing.
    """
    table = f"llmbeam_bench_{rows}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(table)))
        connection.execute(sql.SQL(_TABLE).format(sql.Identifier(table), sql.Literal(rows)))
        try:
            copied = _copy_seconds(dsn, table)
            command = [sys.executable, "-m", "bench.staged_rows", dsn, f"--stage={table}"]
            found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout.splitlines()[-1])
        finally:
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(table)))
    if found["rows"] != rows:
        raise ValueError(f"{found['rows']:,} of {rows:,} rows are staged.")
    return [
        f"psql \\copy {rows / copied:,.0f} rows/s",
        f"staged {rows / found['seconds']:,.0f} rows/s, {copied / found['seconds']:.2f} of psql, "
        f"{found['memory_mib']:,.0f} MiB of which {found['before_mib']:,.0f} before the first row",
    ]


def _copy_seconds(dsn: str, table: str) -> float:
    with tempfile.TemporaryDirectory(prefix="llmbeam-bench-") as directory:
        copy = f"\\copy (SELECT * FROM {table}) TO '{directory}/rows.csv' CSV HEADER"
        started_at = time.monotonic()
        subprocess.run(["psql", dsn, "--quiet", f"--command={copy}"], check=True)
        return time.monotonic() - started_at


def _stage(dsn: str, table: str) -> None:
    setattr(hook_module, "get_hook", lambda _: _Hook(dsn))  # noqa: B010 - the package of the provider is not needed
    with tempfile.TemporaryDirectory(prefix="llmbeam-bench-") as directory:
        spec = JobSpec.parse(
            {
                "name": "bench",
                "source": {"conn_id": "bench", "query": f"SELECT * FROM {table}", "key": "id"},
                "prompt": "{{ row.text }}",
                "model": "echo",
                "sink": str(Path(directory, "out")),
            }
        )
        import pyarrow.parquet  # noqa: F401 - a part of the memory before the first row

        ObjectStorage().exists(directory)
        before, started_at = _peak_mib(), time.monotonic()
        stage = stage_rows(spec, ObjectStorage(), logging.getLogger(__name__))
        seconds = time.monotonic() - started_at
    _print(json.dumps({"rows": stage.rows, "seconds": seconds, "before_mib": before, "memory_mib": _peak_mib()}))


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
