from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.gcp.bigquery import BigQueryDisposition, ReadFromBigQuery, WriteToBigQuery
from apache_beam.io.gcp.internal.clients import bigquery as apitools
from apache_beam.options.pipeline_options import PipelineOptions
from google.cloud import bigquery

from airflow_provider_llmbeam.sandbox import Proxy, Sandbox

PROJECT = "llmbeam-sandbox"
OPTIONS = [f"--project={PROJECT}", "--temp_location=gs://rows/temp"]
ROWS = [{"id": n, "text": f"row {n}", "tags": ["a", "b"]} for n in range(20)]
# Beam's own warnings, and sockets that it leaves to be collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::beam.utils.annotations.BeamDeprecationWarning")
    if False
    else pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Sandbox, Proxy]]:
    with Sandbox(buckets=("rows",)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture(
    params=[
        "by their hosts",
        pytest.param(
            "by the environment",
            marks=pytest.mark.skipif(find_spec("socks") is None, reason="httplib2 needs PySocks for a proxy"),
        ),
    ]
)
def sandbox(
    served: tuple[Sandbox, Proxy], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Sandbox:
    """A sandbox that Beam's three Google clients reach."""
    running, proxy = served
    running.reset()
    for name, value in proxy.environment().items():
        monkeypatch.setenv(name, value)
    if request.param == "by their hosts":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", running.url)
        # Beam's other BigQuery client has no setting for it.
        monkeypatch.setattr(apitools.BigqueryV2, "BASE_URL", f"{running.url}/bigquery/v2/")
    return running


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[bigquery.Client]:
    with bigquery.Client() as made:
        made.create_dataset("llm")
        config = bigquery.LoadJobConfig(autodetect=True)
        made.load_table_from_json(ROWS, "llm.rows", job_config=config).result()
        yield made


def collect(source: beam.PTransform) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    keep = found.append
    with beam.Pipeline(
        runner="DirectRunner", options=PipelineOptions([*OPTIONS, "--direct_running_mode=in_memory"])
    ) as p:
        _ = p | source | beam.Map(lambda row: COLLECTED.append(row))
    del keep
    found, COLLECTED[:] = sorted(COLLECTED, key=lambda row: row["id"]), []
    return found


COLLECTED: list[dict[str, Any]] = []


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


@pytest.mark.parametrize("form", ["NEWLINE_DELIMITED_JSON", "AVRO"])
def test_beam_writes_by_file_loads(client: bigquery.Client, form: str) -> None:
    with beam.Pipeline(options=PipelineOptions(OPTIONS)) as pipeline:
        _ = (
            pipeline
            | beam.Create([{"id": n, "text": "x"} for n in range(10)])
            | WriteToBigQuery(
                f"{PROJECT}:llm.answers",
                schema="id:INTEGER,text:STRING",
                method=WriteToBigQuery.Method.FILE_LOADS,
                temp_file_format=form,
                create_disposition=BigQueryDisposition.CREATE_IF_NEEDED,
                write_disposition=BigQueryDisposition.WRITE_TRUNCATE,
            )
        )
    assert sorted(row.id for row in client.list_rows("llm.answers")) == list(range(10))
