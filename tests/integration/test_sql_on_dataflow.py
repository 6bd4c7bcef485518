"""Rows of a SQL database in a job on Dataflow: read on the worker of Airflow, staged on Cloud Storage."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest
from airflow.sdk import DAG
from build_template import template
from llmbeam_sandbox import DataflowSettings, Sandbox

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

pytestmark = [pytest.mark.full, pytest.mark.slow]


@pytest.fixture
def sandbox():
    with Sandbox(buckets=("rows",), dataflow=DataflowSettings(workers=2)) as running:
        yield running


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "runner", [{}, {"flex_template": "gs://rows/template.json"}], ids=["submitted", "template"]
)
def test_dataflow_workers_read_the_staged_rows_which_are_deleted_when_the_answers_are_published(
    run_dag, google, add_connection, tmp_path, sandbox, quick_polls, runner
):
    from google.cloud import storage

    made = json.dumps(template("images/llmbeam:1"))
    storage.Client().bucket("rows").blob("template.json").upload_from_string(made)
    add_connection("warehouse", "sqlite", str(tmp_path / "warehouse.db"))
    with closing(sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None)) as database:
        database.execute("CREATE TABLE tickets (id INTEGER, text TEXT)")
        database.executemany("INSERT INTO tickets VALUES (?, ?)", ((row, f"ticket {row}") for row in range(200)))
    with DAG("night", schedule=None) as dag:
        RunInferenceOperator(
            task_id="classify",
            source={"conn_id": "warehouse", "query": "SELECT * FROM tickets", "key": "id"},
            prompt="Good or bad? {{ row.text }}",
            model={"type": "gemini", "project": google.project},
            sink="gs://rows/out",
            runner={"type": "dataflow", "location": "europe-west1", **runner},
        )
    assert run_dag(dag)[1] == {"classify": "success"}
    blobs = [*storage.Client().list_blobs("rows", prefix="out/")]
    lines = [line for blob in blobs if "answers-" in blob.name for line in blob.download_as_text().splitlines()]
    assert sorted(json.loads(line)["id"] for line in lines) == [*range(200)]
    assert not [blob.name for blob in blobs if "parquet" in blob.name]
    staged = [each for each in sandbox.requests if each.resource and ".parquet" in str(each.resource)]
    assert staged, "the workers have read them"
