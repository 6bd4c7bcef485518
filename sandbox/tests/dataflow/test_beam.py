from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.gcp.bigquery import BigQueryDisposition, ReadFromBigQuery, WriteToBigQuery
from apache_beam.io.gcp.internal.clients import bigquery as apitools
from apache_beam.options.pipeline_options import PipelineOptions
from google.cloud import bigquery, storage
from llmbeam_sandbox import Sandbox

PROJECT = "llmbeam-sandbox"
OPTIONS = [f"--project={PROJECT}", "--temp_location=gs://rows/temp"]
ROWS = [{"id": n, "text": f"row {n}", "tags": ["a", "b"]} for n in range(20)]
# Beam leaves its sockets to be collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def served() -> Iterator[Sandbox]:
    with Sandbox(buckets=("rows",)) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(served: Sandbox, credentials: None, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A sandbox that Beam's three Google clients reach by its address; `tests/pipeline` has them use the proxy."""
    served.reset()
    file = Path(os.environ["GOOGLE_APPLICATION_CREDENTIALS"])
    file.write_text(json.dumps(json.loads(file.read_text()) | {"token": served.token}))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", served.authorized_url)
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", served.authorized_url)
    # Beam's other BigQuery client has no setting for it.
    monkeypatch.setattr(apitools.BigqueryV2, "BASE_URL", f"{served.url}/bigquery/v2/")
    return served


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[bigquery.Client]:
    with bigquery.Client() as made:
        made.create_dataset("llm")
        config = bigquery.LoadJobConfig(autodetect=True)
        made.load_table_from_json(ROWS, "llm.rows", job_config=config).result()
        yield made


@pytest.fixture(autouse=True)
def _collect_sockets() -> Iterator[None]:
    yield
    gc.collect()


def collect(source: beam.PTransform) -> list[dict[str, Any]]:
    with beam.Pipeline(options=PipelineOptions(OPTIONS)) as pipeline:
        _ = pipeline | source | beam.Map(json.dumps) | beam.io.WriteToText("gs://rows/out", shard_name_template="")
    with storage.Client() as client:
        text = client.bucket("rows").blob("out").download_as_text()
    return sorted(map(json.loads, text.splitlines()), key=lambda row: row["id"])


@pytest.mark.usefixtures("client")
def test_beam_reads_a_table_by_export() -> None:
    source = ReadFromBigQuery(table=f"{PROJECT}:llm.rows", method="EXPORT")
    assert collect(source) == ROWS


def test_beam_reads_a_query_by_export_and_cleans_up(client: bigquery.Client, sandbox: Sandbox) -> None:
    source = ReadFromBigQuery(
        query="SELECT id, text FROM `llmbeam-sandbox.llm.rows` WHERE id < 3",
        use_standard_sql=True,
        method="EXPORT",
    )
    assert collect(source) == [{"id": n, "text": f"row {n}"} for n in range(3)]
    assert [found.dataset_id for found in client.list_datasets()] == ["llm"]


def test_beam_writes_by_file_loads_of_avro(client: bigquery.Client) -> None:
    with beam.Pipeline(options=PipelineOptions(OPTIONS)) as pipeline:
        _ = (
            pipeline
            | beam.Create([{"id": n, "text": "x"} for n in range(10)])
            | WriteToBigQuery(
                f"{PROJECT}:llm.answers",
                schema="id:INTEGER,text:STRING",
                method=WriteToBigQuery.Method.FILE_LOADS,
                temp_file_format="AVRO",
                create_disposition=BigQueryDisposition.CREATE_IF_NEEDED,
                write_disposition=BigQueryDisposition.WRITE_TRUNCATE,
            )
        )
    assert sorted(row.id for row in client.list_rows("llm.answers")) == list(range(10))
