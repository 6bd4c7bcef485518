"""Sinks outside Kafka of a stream: upserted by key, as often as a transaction is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from milvus_lite.server_manager import server_manager_instance
from pymilvus import MilvusClient

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, failed_row
from airflow_provider_llmbeam.pipeline.stream.journal import PartitionJournal
from airflow_provider_llmbeam.pipeline.stream.order import PartitionOrder
from airflow_provider_llmbeam.pipeline.stream.outputs import Outputs
from airflow_provider_llmbeam.pipeline.stream.partition import Commit, Message, Partition, Vector
from airflow_provider_llmbeam.pipeline.stream.run import check_stream
from airflow_provider_llmbeam.pipeline.stream.stores import Stores
from airflow_provider_llmbeam.pipeline.stream.topics import Topics
from airflow_provider_llmbeam.spec import JobSpec
from tests.outcomes import completion

pytestmark = pytest.mark.full

TOPICS = Topics(source=("q",), answers=None, dead_letter="dead", journal="journal", history=None, group="g")


def answered(number: int, text: str = "yes") -> AnsweredRow:
    row = {"kafka_topic": "q", "kafka_partition": 0, "kafka_offset": number, "text": f"t{number}"}
    return AnsweredRow(row, f"f{number}", completion(text), "fresh")


@pytest.fixture
def job(tmp_path, postgres, monkeypatch) -> JobSpec:
    monkeypatch.setenv("STORE", postgres)
    sink = {"type": "postgres", "table": "answers", "dsn_env": "STORE"}
    spec = JobSpec.parse(
        {
            "name": "stream",
            "source": {"type": "kafka", "topic": "q", "bootstrap_servers": "127.0.0.1:1"},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "echo"},
            "sink": sink,
            "state_uri": str(tmp_path),
        }
    )
    _, (found,) = check_stream(spec)
    return found


@pytest.fixture
def end() -> Iterator[asyncio.Future[None]]:
    loop = asyncio.new_event_loop()
    yield asyncio.Future(loop=loop)
    loop.close()


def with_embedding(job: JobSpec, sink: dict[str, object]) -> tuple[JobSpec, Outputs]:
    """Returns the job that makes the vectors of a sink, and the records of its stream."""
    model = {"type": "openai", "name": "m", "base_url": "http://127.0.0.1:1/v1"}
    sink = {**sink, "embed": {"model": model, "dimensions": 2}, "passthrough": ["llmbeam_text"]}
    spec = JobSpec.parse({**job.model_dump(mode="json"), "sink": sink})
    _, (found,) = check_stream(spec)
    return found, Outputs(OutputColumns.of(spec), None, TOPICS, 1000, has_stores=True)


def embedded(end: asyncio.Future[None], outputs: Outputs, *texts: str) -> Commit:
    """Returns a transaction of answers that have vectors."""
    commit = commit_of(end, outputs, *(answered(number, text) for number, text in enumerate(texts)))
    for number, result in enumerate(commit.results):
        vector = replace(answered(0).completion, text="", parsed=[float(number), 1.0])
        result.message.vectors = (Vector(f"v{number}", vector, "fresh"),)
    return commit


def commit_of(end: asyncio.Future[None], outputs: Outputs, *rows) -> Commit:
    results = tuple(outputs.result(Message(number, b"k", None, 0.0, row), row) for number, row in enumerate(rows))
    partition = Partition(("q", 0), PartitionOrder(0), PartitionJournal())
    return Commit(partition, results, len(rows), {}, "", end)


def rows_of(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT kafka_offset, answer FROM answers ORDER BY 1").fetchall()


def test_a_repeated_transaction_stores_each_answer_once(job, postgres, end):
    outputs = Outputs(OutputColumns.of(job), None, TOPICS, 1000, has_stores=True)
    commit = commit_of(end, outputs, answered(0), answered(1, "no"), failed_row({}, "unreadable_row", "bytes"))
    assert [each.topic for each in commit.results] == [None, None, "dead"]
    stores = Stores([job], outputs)
    for _ in range(2):
        (after,) = stores.put([commit])
        assert after.results == commit.results
    assert rows_of(postgres) == [(0, "yes"), (1, "no")]


def test_an_answer_that_a_store_refuses_goes_to_the_dead_letter_and_the_others_are_stored(job, postgres, end):
    outputs = Outputs(OutputColumns.of(job), None, TOPICS, 1000, has_stores=True)
    stores = Stores([job], outputs)
    stores.put([commit_of(end, outputs, answered(0))])
    with psycopg.connect(postgres) as connection:
        connection.execute("ALTER TABLE answers ADD CHECK (answer <> 'never')")
    (after,) = stores.put([commit_of(end, outputs, answered(0), answered(1, "never"))])
    assert [(each.topic, each.is_answered) for each in after.results] == [(None, True), ("dead", False)]
    assert b"not_stored" in after.results[1].value
    assert (1, "never") not in rows_of(postgres)


def test_a_store_has_the_vectors_of_answers_with_their_texts(job, postgres, end):
    with psycopg.connect(postgres) as connection:
        connection.execute("DROP TABLE IF EXISTS vectors")
    found, outputs = with_embedding(job, {**job.sink.model_dump(mode="json"), "table": "vectors"})
    stores = Stores([found], outputs)
    for _ in range(2):
        (after,) = stores.put([embedded(end, outputs, "yes", "no")])
        assert all(each.is_answered for each in after.results)
    with psycopg.connect(postgres) as connection:
        rows = connection.execute(
            "SELECT kafka_offset, answer, llmbeam_text, llmbeam_fingerprint FROM vectors ORDER BY 1"
        ).fetchall()
    assert rows == [(0, [0.0, 1.0], "yes", "v0"), (1, [1.0, 1.0], "no", "v1")]


def test_a_collection_of_milvus_has_the_vectors_of_answers(job, tmp_path, end):
    sink = {"type": "milvus", "uri": f"{tmp_path}/answers.db", "collection": "answers"}
    found, outputs = with_embedding(job, sink)
    stores = Stores([found], outputs)
    for _ in range(2):
        stores.put([embedded(end, outputs, "yes", "no")])
    client = MilvusClient(sink["uri"])
    client.load_collection("answers")
    rows = client.query("answers", filter="kafka_offset >= 0", output_fields=["vector", "llmbeam_text"])
    client.close()
    server_manager_instance.release_server(sink["uri"])
    assert sorted((row["llmbeam_text"], [*map(float, row["vector"])]) for row in rows) == [
        ("no", [1.0, 1.0]),
        ("yes", [0.0, 1.0]),
    ]
