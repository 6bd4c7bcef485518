"""Rows out of BigQuery, answers into it: real jobs, and unmodified Google clients against the sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import bigquery, storage

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.__main__ import run
from airflow_provider_llmbeam.sandbox import Fault, Proxy, Sandbox
from airflow_provider_llmbeam.spec import JobSpec

PROJECT = "llmbeam-sandbox"
ROWS, ANSWERS = f"{PROJECT}.llm.rows", f"{PROJECT}.llm.answers"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Sandbox, Proxy]]:
    with Sandbox(buckets=("state",)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served: tuple[Sandbox, Proxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A sandbox in place of Google, by the environment alone."""
    running, proxy = served
    running.reset()
    for name, value in proxy.environment().items():
        monkeypatch.setenv(name, value)
    yield running
    running.faults.assert_all_consumed()


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[bigquery.Client]:
    with bigquery.Client() as made:
        made.create_dataset("llm")
        yield made


def load(client: bigquery.Client, rows: list[dict[str, Any]], table: str = ROWS, **config: Any) -> None:
    job_config = bigquery.LoadJobConfig(**{"autodetect": "schema" not in config, **config})
    client.load_table_from_json(rows, table, job_config=job_config).result()


def spec_of(**changes: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "job",
            "source": {"type": "bigquery", "table": ROWS, "key": ["id"]},
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "gs://state/out/"},
            "state_uri": "gs://state/",
            **changes,
        }
    )


def answers_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    with storage.Client() as made:
        for uri in manifest["answers_uris"]:
            bucket, _, name = uri.removeprefix("gs://").partition("/")
            found += map(json.loads, made.bucket(bucket).blob(name).download_as_text().splitlines())
    return sorted(found, key=lambda row: row["id"])


def test_a_table_is_answered_into_files(client, sandbox):
    load(client, [{"id": n, "text": f"row {n}"} for n in range(50)])
    manifest = run(spec_of())
    assert manifest["rows"] == {"read": 50, "answered": 50, "dead_letter": 0}
    assert [row["id"] for row in answers_of(manifest)] == list(range(50))


def table_of(client: bigquery.Client, table: str = ANSWERS) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in client.list_rows(table)), key=lambda row: str(row["id"]))


TO_TABLE = {"type": "bigquery", "table": ANSWERS}


def test_a_query_is_answered_into_a_table(client, sandbox):
    load(client, [{"id": n, "text": f"row {n}"} for n in range(50)])
    query = f"SELECT id, text FROM `{ROWS}` WHERE id < 20"
    spec = spec_of(source={"type": "bigquery", "query": query, "key": ["id"]}, sink=TO_TABLE)
    manifest = run(spec)
    assert manifest["rows"] == {"read": 20, "answered": 20, "dead_letter": 0}
    assert manifest["answers_uris"] == [f"bigquery://{ANSWERS}"]
    first = table_of(client)
    assert [row["id"] for row in first] == list(range(20)), "sorted as text"
    run(spec)
    assert table_of(client) == first
