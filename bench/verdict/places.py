"""Where a case has its rows and its output, read through the interfaces of the places themselves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import httpx
import psycopg
import pyarrow.parquet as pq
from llmbeam_sandbox import Sandbox
from psycopg import sql

from bench.verdict.cases import SinkKind
from bench.verdict.history import PublishedRow

PROJECT, BUCKET, DATASET, TABLE = "llmbeam-sandbox", "rows", "llm", "answers"


class Place(Protocol):
    """A folder of files."""

    @property
    def uri(self) -> str:
        """Its address, without a slash at its end."""

    def write(self, name: str, text: str) -> None:
        """Writes a file."""

    def find(self, prefix: str) -> Mapping[str, bytes]:
        """Returns the files in it and below whose own names begin so, by their names after the address."""


@dataclass(frozen=True)
class Folder:
    """A folder of this machine."""

    path: Path

    @property
    def uri(self) -> str:
        """Its address."""
        return str(self.path)

    def write(self, name: str, text: str) -> None:
        """Writes a file."""
        (self.path / name).write_text(text)

    def find(self, prefix: str) -> Mapping[str, bytes]:
        """Returns files."""
        return {str(path.relative_to(self.path)): path.read_bytes() for path in self.path.rglob(f"{prefix}*")}


@dataclass(frozen=True)
class Bucket:
    """The emulated bucket of Cloud Storage."""

    sandbox: Sandbox

    @property
    def uri(self) -> str:
        """Its address."""
        return f"gs://{BUCKET}"

    def write(self, name: str, text: str) -> None:
        """Writes an object."""
        address = f"{self.sandbox.authorized_url}/upload/storage/v1/b/{BUCKET}/o"
        query = {"uploadType": "media", "name": name}
        httpx.post(address, params=query, content=text).raise_for_status()

    def find(self, prefix: str) -> Mapping[str, bytes]:
        """Returns objects."""
        address = f"{self.sandbox.authorized_url}/storage/v1/b/{BUCKET}/o"
        listed = httpx.get(address).raise_for_status().json().get("items", [])
        names = [item["name"] for item in listed if item["name"].rpartition("/")[2].startswith(prefix)]
        return {name: self._read(f"{address}/{quote(name, safe='')}") for name in names}

    def _read(self, address: str) -> bytes:
        return httpx.get(address, params={"alt": "media"}).raise_for_status().content


@dataclass(frozen=True)
class Output:
    """The sink of a case.

    Attributes:
        spec: It, in the spec of the job.
        read: Returns the rows that it shows.
    """

    spec: dict[str, Any]
    read: Callable[[], tuple[PublishedRow, ...]]


def make_output(kind: SinkKind, place: Place, sandbox: Sandbox, dsn: str) -> Output:
    """Prepares a sink.

    Args:
        kind: Its kind.
        place: Folder of its files.
        sandbox: The sandbox with the table of BigQuery.
        dsn: Connection string of an empty database of PostgreSQL.
    """
    if kind == "postgres":
        return Output({"type": "postgres", "table": TABLE}, lambda: _rows_of_postgres(dsn))
    if kind == "bigquery":
        dataset = {"datasetReference": {"projectId": PROJECT, "datasetId": DATASET}}
        _call_bigquery(sandbox, "datasets", dataset).raise_for_status()
        table = {"type": "bigquery", "table": f"{PROJECT}.{DATASET}.{TABLE}"}
        return Output(table, lambda: _rows_of_bigquery(sandbox))
    files = {"type": "files", "uri": f"{place.uri}/out", "format": kind}
    return Output(files, lambda: _rows_of_files(place))


def dead_letter_of(place: Place) -> tuple[int, ...]:
    """Returns the keys in the dead letter, wherever a job has put it."""
    return tuple(row["id"] for data in place.find("dead_letter-").values() for row in _lines(data))


def _rows_of_files(place: Place) -> tuple[PublishedRow, ...]:
    found: list[dict[str, Any]] = []
    for name, data in place.find("answers-").items():
        if name.startswith("out/answers-"):  # and not what is staged below it
            is_parquet = name.endswith(".parquet")
            found += pq.read_table(io.BytesIO(data)).to_pylist() if is_parquet else _lines(data)
    return tuple(PublishedRow(key=row["id"], answer=row["answer"]) for row in found)


def _lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode().splitlines()]


def _rows_of_postgres(dsn: str) -> tuple[PublishedRow, ...]:
    query = sql.SQL("SELECT id, answer FROM {}").format(sql.Identifier(TABLE))
    with psycopg.connect(dsn) as connection:
        try:
            rows = connection.execute(query).fetchall()
        except psycopg.errors.UndefinedTable:
            return ()
    return tuple(PublishedRow(key=key, answer=answer) for key, answer in rows)


def _rows_of_bigquery(sandbox: Sandbox) -> tuple[PublishedRow, ...]:
    query = f"SELECT id, answer FROM `{PROJECT}.{DATASET}.{TABLE}`"
    reply = _call_bigquery(sandbox, "queries", {"query": query, "useLegacySql": False})
    if reply.status_code == 404:
        return ()
    rows = reply.raise_for_status().json().get("rows", [])
    return tuple(PublishedRow(key=int(row["f"][0]["v"]), answer=row["f"][1]["v"]) for row in rows)


def _call_bigquery(sandbox: Sandbox, what: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{sandbox.authorized_url}/bigquery/v2/projects/{PROJECT}/{what}", json=body)
