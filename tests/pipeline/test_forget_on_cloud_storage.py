"""Deletion on Cloud Storage: no object of a job has a forgotten row, also after a kill at any request."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from apache_beam.io.gcp.gcsio import GcsIO
from google.cloud import bigquery
from google.cloud.storage import Blob
from llmbeam_sandbox import Proxy, Sandbox

from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.forget.run import forget, statement
from airflow_provider_llmbeam.pipeline.measure.named_keys import NamedKeys
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.safety import RowsToForget
from tests.clouds import for_one_test
from tests.pipeline.test_forget import counted, dying

# Beam closes none of its clients of Cloud Storage.
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
#: The last two become no prompt, and are in the dead letter.
ROWS = [
    *({"id": number, "text": f"<{number}> words"} for number in range(6)),
    *({"id": number, "note": f"<{number}> words"} for number in (6, 7)),
]
#: Rows that are forgotten: one with an answer, and one of the dead letter.
GONE = ("3", "7")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Sandbox, Proxy]]:
    with Sandbox(buckets=("state", "out")) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served, monkeypatch) -> Iterator[Sandbox]:
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def objects(sandbox) -> dict[str, Any]:
    """The objects of the bucket of the sink and the state, by name; a test may put earlier ones back."""
    return sandbox._services.storage.store.bucket("out").objects


def spec_of(file_format: str = "jsonl", **changes: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "gs://state/in.jsonl", "key": ["id"]},
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": {"type": "echo"},
            "limits": {"max_dead_letter_ratio": 1.0},
            "sink": {"uri": "gs://out/answers", "format": file_format, "passthrough": ["text"]},
            "state_uri": "gs://out/state/",
            "safety": {"audit": {"uri": "gs://out/audit"}},
            **changes,
        }
    )


def write(sandbox: Sandbox, rows: list[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    sandbox._services.storage.store.put("state", "in.jsonl", lines, {}, {})


def mentions(objects: dict[str, Any], text: str) -> list[str]:
    found = []
    for name, each in objects.items():
        rows = pq.read_table(io.BytesIO(each.data)).to_pylist() if name.endswith(".parquet") else []
        if text.encode() in each.data or text in json.dumps(rows):
            found.append(name)
    return found


def test_no_object_has_a_forgotten_row_and_it_is_said_what_the_buckets_may_keep(sandbox, objects):
    write(sandbox, ROWS)
    spec = spec_of("parquet", cache={"scope": "tickets"})
    run(spec)
    assert len(mentions(objects, "<3>")) >= 2, "the answers, the cache, and perhaps the samples of the report"
    found = forget(spec, RowsToForget(keys=GONE))
    assert counted(found) == {"cache": 1, "report": 2, "answers": 1, "dead letter": 1}
    assert [name for key in GONE for name in mentions(objects, f"<{key}>")] == []
    assert all(mentions(objects, f"<{number}>") for number in (0, 1, 2, 4, 5, 6))
    assert any("'gs://out/audit/'" in each for each in found.unreached)
    assert any(
        each.startswith("object versions and soft-deleted objects of gs://out:") for each in found.unreached
    )
    again = run(spec)
    assert again["origins"]["fresh"] == 1


def test_a_removal_that_was_killed_at_any_request_is_completed_by_the_next_one(sandbox, objects, monkeypatch):
    write(sandbox, ROWS)
    spec = spec_of()
    run(spec)
    write(sandbox, ROWS[:2])  # the fingerprints of both rows are known from the output alone
    before = dict(objects)
    for step in itertools.count():
        objects.clear()
        objects.update(before)
        calls, was_killed = itertools.count(), False
        with monkeypatch.context() as patched:
            for owner, name in (
                (Blob, "upload_from_string"),
                (GcsIO, "open"),
                (GcsIO, "copy_batch"),
                (GcsIO, "delete_batch"),
            ):
                patched.setattr(owner, name, unless_leased(getattr(owner, name), calls, step))
            try:
                forget(spec, RowsToForget(keys=GONE))
            except KeyboardInterrupt:
                was_killed = True
        forget(spec, RowsToForget(keys=GONE))
        assert [name for key in GONE for name in mentions(objects, f"<{key}>")] == []
        assert all(mentions(objects, f"<{number}>") for number in (0, 1, 2, 4, 5, 6))
        assert not [name for name in objects if "staging" in name or "forget-" in name]
        if not was_killed:
            break
    assert step == 9  # segment; two reports; answers and dead letter, each made, copied, and its copy deleted


def unless_leased(original: Any, calls: Iterator[int], step: int) -> Any:
    """Returns a request that changes the bucket, as `dying`; those of the lease, and reads, are not counted."""
    counted_call = dying(original, calls, step)

    def call(*args: Any, **kwargs: Any) -> Any:
        is_lease = isinstance(args[0], Blob) and args[0].name.endswith(("lease", "_merge"))
        is_read = args[2:] == ("rb",)
        return (original if is_lease or is_read else counted_call)(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("key", "kept"),
    [(17, 170), ("17", "1"), ('it\'s \\ a "key"\nof `two` lines', "it's"), ("'; DROP TABLE answers; --", "x")],
)
def test_the_statement_for_a_table_removes_the_row_alone(sandbox, key, kept):
    spec = spec_of(sink={"type": "bigquery", "table": "llmbeam-sandbox.llm.answers"})
    kind = "INT64" if isinstance(key, int) else "STRING"
    with bigquery.Client() as client:
        client.create_dataset("llm")
        client.query_and_wait(f"CREATE TABLE `llm.answers` (id {kind}, answer STRING)")
        for value in (key, kept):
            parameters = [bigquery.ScalarQueryParameter("id", kind, value)]
            client.query_and_wait(
                "INSERT INTO `llm.answers` (id, answer) VALUES (@id, 'words')",
                job_config=bigquery.QueryJobConfig(query_parameters=parameters),
            )
        text = statement(spec, NamedKeys([str(key)], spec.source.key))
        assert text is not None
        client.query_and_wait(text)
        assert [row.id for row in client.query_and_wait("SELECT id FROM `llm.answers`")] == [kept]
