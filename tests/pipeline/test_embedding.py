"""Embedding jobs: the same promises as for text generation, with many rows per request."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from llmbeam_sandbox import Fault, Latency, ModelSettings, Quota, Sandbox, prompt_sha256
from llmbeam_sandbox.models.embedding.base import vector
from milvus_lite.server_manager import server_manager_instance
from pymilvus import MilvusClient

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, PermanentFailureError
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec
from tests.processes import until_job
from tests.replying import Replying, raw

OPENAI, DEVELOPER, VERTEX = "openai.embeddings", "gemini.batchEmbedContents", "gemini.predict"
DIMENSIONS = 16


def rows(count: int) -> list[dict]:
    return [{"id": number, "text": f"row number {number}"} for number in range(count)]


def embedding_job(job, **model):
    job.spec |= {
        "task": "embed",
        "embedding": {"dimensions": DIMENSIONS},
        "prompt": {"template": "{{ row.text }}"},
        "model": {**job.spec["model"], **model},
    }
    return job


@pytest.fixture
def embed(openai_job):
    """An embedding job against the emulated OpenAI-compatible server."""
    return embedding_job(openai_job, name="text-embedding-3-small")


@pytest.fixture
def gemini_embed(job):
    """An embedding job against the emulated Gemini Developer API."""
    return embedding_job(job, name="gemini-embedding-001")


def test_every_row_has_the_vector_of_its_text(embed):
    ended = embed.run(rows(50))
    assert {row["id"]: row["answer"] for row in ended.answers} == {
        row["id"]: vector(row["text"], model="text-embedding-3-small", dimensions=DIMENSIONS) for row in rows(50)
    }
    assert {row["llmbeam_finish_reason"] for row in ended.answers} == {"stop"}
    assert {row["llmbeam_output_tokens"] for row in ended.answers} == {0}


def test_a_job_needs_few_requests(embed, sandbox):
    ended = embed.run(rows(5000))
    assert len(sandbox.requests) == 3, "2,048 texts fit one request"
    assert ended.manifest["requests"]["sent"] == 3
    assert ended.manifest["tokens"]["input"] == sandbox.stats()["input_tokens"]


def test_long_texts_share_a_request_with_few_others(embed, sandbox):
    texts = [{"id": number, "text": f"{number:03} " * 600} for number in range(40)]
    embed.run(texts, batching={"max_padded_tokens": 4_000})
    assert len(sandbox.requests) == 7
    assert max(record.input_tokens for record in sandbox.requests) <= 4_000


def test_max_instances_limits_the_texts_per_request(embed, sandbox):
    embed.run(rows(100), batching={"max_instances": 32})
    assert len(sandbox.requests) == 4
    assert max(len(record.texts_sha256) for record in sandbox.requests) == 32


def test_the_developer_api_gets_a_hundred_texts_per_request(gemini_embed, sandbox):
    ended = gemini_embed.run(rows(250))
    assert Counter(record.method for record in sandbox.requests) == {DEVELOPER: 3}
    assert {len(row["answer"]) for row in ended.answers} == {DIMENSIONS}


@pytest.mark.parametrize(("model", "requests"), [("text-embedding-005", 2), ("gemini-embedding-001", 300)])
def test_vertex_ai_gets_as_many_texts_as_the_model_takes(
    gemini_embed, sandbox, tmp_path, monkeypatch, model, requests
):
    credentials = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    path = tmp_path / "adc.json"
    path.write_text(json.dumps({**credentials, "token": "t", "expiry": "2099-01-01T00:00:00Z"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    place = {"name": model, "project": "p", "location": "us-central1"}
    ended = gemini_embed.run(rows(300), model={**gemini_embed.spec["model"], **place})
    assert Counter(record.method for record in sandbox.requests) == {VERTEX: requests}
    assert ended.manifest["tokens"]["input"] == sandbox.stats()["input_tokens"]


def test_equal_texts_are_embedded_once(embed, sandbox):
    ended = embed.run([{"id": number, "text": f"text {number % 7}"} for number in range(70)])
    assert sandbox.requests.paid(OPENAI) == {prompt_sha256(f"text {number}"): 1 for number in range(7)}
    assert ended.manifest["origins"] == Counter(ended.manifest["origins"]) | {"fresh": 7, "duplicate": 63}


def test_a_second_run_sends_nothing_and_writes_the_same(embed, sandbox):
    first = embed.run(rows(40))
    sent = len(sandbox.requests)
    second = embed.run()
    assert len(sandbox.requests) == sent
    assert second.manifest["origins"]["resumed"] == 40
    assert {row["id"]: row["answer"] for row in first.answers} == {
        row["id"]: row["answer"] for row in second.answers
    }


@pytest.mark.parametrize(
    "change",
    [
        {"embedding": {"dimensions": 4}},
        {"model": {"type": "openai", "name": "text-embedding-3-large"}},
        {"prompt": {"template": "passage: {{ row.text }}"}},
    ],
    ids=["dimensions", "model", "text"],
)
def test_a_changed_model_parameter_or_text_is_sent_again(embed, sandbox, change):
    embed.run(rows(5))
    if "model" in change:
        change["model"]["base_url"] = sandbox.openai_url
    embed.run(**change)
    assert len(sandbox.requests) == 2


def test_one_bad_text_in_a_request_of_many_fails_alone_and_no_text_is_paid_for_twice(embed, sandbox):
    message = "This text is not welcome."
    sandbox.faults.when(OPENAI, "row number 77\n", Fault(kind="error", http_status=400, message=message))
    ended = embed.run([*rows(200)[:77], {"id": 77, "text": "row number 77\n"}, *rows(200)[78:]])
    (failed,) = ended.dead_letter
    assert (failed["id"], failed["llmbeam_error"]["kind"]) == (77, "bad_request")
    assert failed["llmbeam_error"]["message"] == message
    assert set(sandbox.requests.paid(OPENAI).values()) == {1}
    assert len(sandbox.requests) <= 2 * math.ceil(math.log2(200)) + 1


def test_a_text_that_is_too_long_fails_alone(embed):
    ended = embed.run([*rows(20), {"id": 99, "text": "far too long " * 4000}])
    assert [row["id"] for row in ended.dead_letter] == [99]
    assert "maximum context length" in ended.dead_letter[0]["llmbeam_error"]["message"]


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_fails_without_a_request(embed, sandbox, text):
    ended = embed.run([*rows(10), {"id": 99, "text": text}])
    assert [row["id"] for row in ended.dead_letter] == [99]
    assert "the text is empty" in ended.dead_letter[0]["llmbeam_error"]["message"]
    assert len(sandbox.requests) == 1


def test_a_lone_surrogate_in_a_text_does_not_fail_its_neighbours(embed):
    ended = embed.run([*rows(10), {"id": 99, "text": "cut \ud83d"}])
    assert set(range(10)) <= {row["id"] for row in ended.answers}


def test_transient_failures_cost_requests_and_no_row(embed, sandbox):
    sandbox.faults.queue(
        OPENAI,
        Fault(kind="rate-limit", retry_delay_seconds=0.05),
        Fault(kind="error", http_status=503),
        Fault(kind="garbage"),
        Fault(kind="truncated"),
        Fault(kind="drop"),
    )
    ended = embed.run(rows(30), batching={"max_instances": 5})
    assert len(ended.answers) == 30
    assert ended.manifest["requests"] == ended.manifest["requests"] | {"sent": 11, "rejected": 1, "retried": 4}


def test_a_quota_of_tokens_is_kept_without_a_429(tmp_path, make_job):
    with Sandbox(models=ModelSettings(quota=Quota(tokens_per_minute=60_000))) as sandbox:
        job = make_job(tmp_path, sandbox)
        embedding_job(job, type="openai", name="m", base_url=sandbox.openai_url)
        texts = [{"id": number, "text": f"{number:06} " * 100} for number in range(20)]
        ended = job.run(texts, limits={"tokens_per_minute": 60_000}, batching={"max_padded_tokens": 1000})
    assert len(ended.answers) == 20
    assert ended.manifest["requests"]["rejected"] == 0


def test_an_unknown_model_fails_with_the_message_of_the_server(gemini_embed):
    model = {**gemini_embed.spec["model"], "name": "models/nonsense"}
    with pytest.raises(PermanentFailureError, match=r"`base_url`. models/nonsense is not found"):
        gemini_embed.run(rows(5), model=model)


def test_a_server_that_returned_unusable_vectors_is_asked_again_once_it_is_repaired(embed):
    """It once was never asked again: the next run had the same error, and sent nothing."""
    vectors = iter(["[NaN, 0.5]", "[0.25, 0.5]"])

    def answer(request):
        found = ",".join(
            f'{{"index": {n}, "embedding": {now}}}' for n, _ in enumerate(json.loads(request.body)["input"])
        )
        return raw(f'{{"data": [{found}], "usage": {{"prompt_tokens": 5}}}}')

    with Replying(answer) as server:
        embed.spec["model"]["base_url"] = f"{server.url}/v1"
        embed.spec["embedding"] = {"dimensions": 2}
        now = next(vectors)
        with pytest.raises(
            PermanentFailureError, match=r"20 of 20 vectors cannot be used: repair the model server"
        ):
            embed.run(rows(20))
        now = next(vectors)
        assert [row["answer"] for row in embed.run().answers] == [[0.25, 0.5]] * 20


def test_parquet_holds_lists_of_numbers(embed):
    ended = embed.run(rows(20), sink={"uri": str(embed.out), "format": "parquet"})
    table = pq.read_table(ended.manifest["answers_uris"][0])
    assert table.schema.field("answer").type == pa.list_(pa.float32())
    for row in ended.answers:
        wanted = vector(f"row number {row['id']}", model="text-embedding-3-small", dimensions=DIMENSIONS)
        assert row["answer"] == pytest.approx(wanted, abs=1e-7)


def test_a_run_without_rows_writes_a_parquet_file_of_the_same_columns(embed):
    source = embed.spec["source"] | {"on_empty": "write"}
    ended = embed.run([], source=source, sink={"uri": str(embed.out), "format": "parquet"})
    table = pq.read_table(ended.manifest["answers_uris"][0])
    assert (table.num_rows, table.schema.field("answer").type) == (0, pa.list_(pa.float32()))


def test_an_echo_needs_no_server(echo_job):
    echo_job.spec |= {"task": "embed", "prompt": {"template": "{{ row.text }}"}}
    ended = echo_job.run(rows(10))
    assert {len(row["answer"]) for row in ended.answers} == {8}
    assert len({tuple(row["answer"]) for row in ended.answers}) == 10


@pytest.mark.full
def test_a_job_killed_with_kill_9_pays_again_at_most_for_requests_in_flight(tmp_path, make_job):
    count, instances, in_flight = 600, 10, 4
    with Sandbox(models=ModelSettings(latency=Latency(mean_seconds=0.05))) as sandbox:
        job = make_job(tmp_path, sandbox)
        embedding_job(job, type="openai", name="m", base_url=sandbox.openai_url)
        job.spec |= {"limits": {"max_in_flight": in_flight}, "batching": {"max_instances": instances}}
        job.write(rows(count))
        spec = tmp_path / "spec.json"
        spec.write_text(json.dumps(job.spec))
        child = subprocess.Popen([sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(spec)])
        until_job(child, lambda: len(sandbox.requests) >= 20)
        child.send_signal(signal.SIGKILL)
        child.wait()
        ended = job.run()
        paid = sandbox.requests.paid(OPENAI)
    assert len(ended.answers) == len(paid) == count
    assert paid.total() - count <= in_flight * instances
    assert ended.manifest["origins"]["resumed"] > 0


@pytest.fixture
def milvus_sink(tmp_path):
    return {"type": "milvus", "uri": f"{tmp_path}/notes.db", "collection": "notes"}


def entities(sink):
    client = MilvusClient(sink["uri"])
    client.load_collection("notes")
    found = {row["id"]: row["vector"] for row in client.query("notes", filter="id >= 0", output_fields=["*"])}
    client.close()
    server_manager_instance.release_server(sink["uri"])
    return found


def test_vectors_are_written_to_milvus_and_a_second_run_changes_nothing(embed, sandbox, milvus_sink):
    embed.spec |= {"sink": milvus_sink, "state_uri": f"{embed.directory}/state"}
    embed.write(rows(300))
    first = run(JobSpec.parse(embed.spec))
    before, sent = entities(milvus_sink), len(sandbox.requests)
    assert first["rows"] == {"read": 300, "answered": 300, "dead_letter": 0, "skipped": 0}
    assert before.keys() == set(range(300))
    wanted = vector("row number 7", model="text-embedding-3-small", dimensions=DIMENSIONS)
    assert before[7] == pytest.approx(wanted, abs=1e-6)
    second = run(JobSpec.parse(embed.spec))
    assert entities(milvus_sink) == before
    assert len(sandbox.requests) == sent
    assert second["origins"]["resumed"] == 300


def test_a_collection_of_another_dimension_is_rejected_before_anything_is_sent(embed, sandbox, milvus_sink):
    embed.spec |= {"sink": milvus_sink, "state_uri": f"{embed.directory}/state"}
    embed.write(rows(10))
    run(JobSpec.parse(embed.spec))
    sandbox.reset()
    with pytest.raises(JobSpecError, match=r"holds vectors of 16 dimensions, .*Nothing was sent or billed"):
        run(JobSpec.parse(embed.spec | {"embedding": {"dimensions": 4}}))
    assert len(sandbox.requests) == 0
    with pytest.raises(JobFailedError, match=r"holds vectors of 16 dimensions, and this job's have 1536"):
        run(JobSpec.parse(embed.spec | {"embedding": {}}))
    assert len(entities(milvus_sink)) == 10


@pytest.mark.full
def test_a_job_killed_while_writing_to_milvus_is_finished_by_the_next_run(embed, sandbox, milvus_sink):
    """Milvus has no transactions: each row is either old or new, and the next try writes the rest."""
    embed.spec |= {"sink": milvus_sink, "state_uri": f"{embed.directory}/state"}
    embed.write(rows(200))
    spec = embed.directory / "spec.json"
    spec.write_text(json.dumps(embed.spec))
    code = (
        "import os, sys\n"
        "from pymilvus import MilvusClient\n"
        "from airflow_provider_llmbeam.pipeline import __main__ as command_line\n"
        "from airflow_provider_llmbeam.pipeline.sinks import milvus\n"
        "milvus._UPSERT_ROWS = 50\n"
        "upsert, calls = MilvusClient.upsert, []\n"
        "def die_in_the_middle(*arguments):\n"
        "    calls.append(None)\n"
        "    if len(calls) == 3:\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return upsert(*arguments)\n"
        "MilvusClient.upsert = die_in_the_middle\n"
        "command_line.main(['--spec', sys.argv[1]])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(spec)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(entities(milvus_sink)) == 100
    sent = len(sandbox.requests)
    run(JobSpec.parse(embed.spec))
    assert entities(milvus_sink).keys() == set(range(200))
    assert len(sandbox.requests) == sent
