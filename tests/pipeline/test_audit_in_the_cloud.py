"""Audit records on Cloud Storage and in BigQuery: each once, whatever happens between a load and its end."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.cloud import bigquery, storage
from llmbeam_sandbox import Fault, Proxy, Sandbox

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.pipeline import storage as files
from airflow_provider_llmbeam.pipeline.audit.load import load_audit
from airflow_provider_llmbeam.pipeline.audit.trail import AuditTrail
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec
from tests.clouds import for_one_test

# Beam closes none of its clients of Cloud Storage.
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TABLE = "llmbeam-sandbox.llm.audit"
TO_TABLE = {"audit": {"table": TABLE}}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Sandbox, Proxy]]:
    with Sandbox(buckets=("state",)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served, monkeypatch) -> Iterator[Sandbox]:
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def client(sandbox) -> Iterator[bigquery.Client]:
    with bigquery.Client() as made:
        made.create_dataset("llm")
        yield made


def spec_of(rows: int = 5, **changes: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "job",
            "source": {
                "type": "rows",
                "rows": [{"id": n, "text": f"row {n}"} for n in range(rows)],
                "key": ["id"],
            },
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "gs://state/out"},
            "state_uri": "gs://state/",
            **changes,
        }
    )


def records(client: bigquery.Client) -> list[dict[str, Any]]:
    return [dict(row) for row in client.query_and_wait(f"SELECT * FROM `{TABLE}`")]


def test_each_record_is_appended_once_over_all_runs(client, sandbox):
    run(spec_of(safety=TO_TABLE))
    run(spec_of(rows=8, safety=TO_TABLE))
    found = records(client)
    assert len(found) == 8
    assert Counter(len(record["row_key_hashes"]) for record in found) == {1: 8}
    loads = [job for job in client.list_jobs() if job.job_type == "load"]
    assert [job.time_partitioning.field for job in loads] == ["at", "at"]
    assert not list(storage.Client().list_blobs("state", prefix="job/audit/"))


def test_a_load_whose_end_was_not_seen_is_not_repeated(client, sandbox, monkeypatch):
    spec = spec_of(safety=TO_TABLE)
    with monkeypatch.context() as patched:
        patched.setattr(files, "delete", _killed)
        with pytest.raises(KeyboardInterrupt):
            _write_and_load(spec)
    assert [record["masked"] for record in records(client)] == [[{"kind": "EMAIL", "count": 2}]] * 2
    load_audit(spec)
    assert len(records(client)) == 2
    assert not list(storage.Client().list_blobs("state", prefix="job/audit/"))


@pytest.mark.parametrize("deleted", [1, 2])
def test_a_load_whose_files_were_deleted_keeps_no_run_with_another_table_back(
    client, sandbox, monkeypatch, deleted
):
    delete = files.delete

    def killed(uris: list[str]) -> None:
        delete(uris[:deleted])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            _write_and_load(spec_of(safety=TO_TABLE))
    assert len(records(client)) == 2
    run(spec_of(safety={"audit": {"table": f"{TABLE}_of_another_year"}}))
    assert len(records(client)) == 2
    assert not list(storage.Client().list_blobs("state", prefix="job/audit/"))


def test_records_of_a_run_that_fails_are_loaded(client, sandbox):
    with pytest.raises(LLMBeamError):
        run(
            spec_of(
                safety=TO_TABLE,
                model={"type": "gemini", "name": "gemini-2.5-flash", "base_url": sandbox.gemini_url},
                limits={"budget_usd": 1e-9, "max_in_flight": 1},
            )
        )
    assert records(client)


def test_a_table_that_cannot_be_loaded_keeps_the_answers_back_and_the_records(client, sandbox):
    spec = spec_of(safety=TO_TABLE)
    sandbox.faults.every("bigquery.jobs.insert", 1, Fault(kind="error", http_status=403, message="no"))
    with pytest.raises(JobFailedError, match="The audit records are in 'gs://state/job/audit/'"):
        run(spec)
    assert not list(storage.Client().list_blobs("state", prefix="out/answers"))
    sandbox.faults.clear()
    run(spec)
    assert len(records(client)) == 5


@pytest.mark.parametrize("complete", [0, 2])
def test_a_record_that_was_cut_off_is_left_out_with_one_warning(client, sandbox, tmp_path, caplog, complete):
    spec = spec_of(safety=TO_TABLE, state_uri=f"{tmp_path}/state/", sink={"uri": f"{tmp_path}/out"})
    line = b'{"record_id": "%d", "at": "2026-01-01T00:00:00Z"}\n'
    Path(spec.paths.audit_uri).mkdir(parents=True)
    for name in ("job-a", "job-b"):
        content = b"".join(line % number for number in range(complete)) + line[:20]
        (Path(spec.paths.audit_uri) / f"{name}.jsonl").write_bytes(content)
    load_audit(spec)
    assert caplog.text.count("cut off, and that are not loaded: 2") == 1
    assert not list(Path(spec.paths.audit_uri).iterdir())
    run(spec)
    assert len(records(client)) == 2 * complete + 5


def test_a_missing_dataset_is_refused_before_anything_is_sent(sandbox):
    with pytest.raises(JobSpecError, match=r"`safety\.audit\.table`.*Nothing was sent"):
        run(spec_of(safety={"audit": {"table": "llmbeam-sandbox.nothing.audit"}}))


def test_objects_of_an_audit_are_never_replaced_or_deleted(sandbox):
    run(spec_of(safety={"audit": {"uri": "gs://state/audit"}}))
    first = {blob.name: blob.generation for blob in storage.Client().list_blobs("state", prefix="audit/date=")}
    assert first
    run(spec_of(rows=8, safety={"audit": {"uri": "gs://state/audit"}}))
    second = {blob.name: blob.generation for blob in storage.Client().list_blobs("state", prefix="audit/date=")}
    assert first.items() < second.items()
    lines = [line for name in second for line in files.read(f"gs://state/{name}").splitlines()]
    assert len(lines) == 8


def test_the_file_of_a_batch_is_looked_for_among_the_records_of_the_days_since_it_began(sandbox, monkeypatch):
    trail = AuditTrail.of(spec_of(safety={"audit": {"uri": "gs://state/audit"}}))
    assert trail is not None
    files.replace(trail.new_uri("known"), b"{}")
    store, listed = sandbox._services.storage.store, list[str]()
    page = store.page

    def counted(bucket: str, query: Mapping[str, str], size: int) -> Any:
        listed.append(query.get("prefix", ""))
        return page(bucket, query, size)

    monkeypatch.setattr(store, "page", counted)
    since = time.time() - 2 * 86_400
    assert trail.has_file("known", since)
    assert not trail.has_file("other", since)
    assert len(listed) <= 6
    assert all(each.startswith("audit/date=20") and "/job-" in each for each in listed)


def fingerprints(prefix: str) -> set[str]:
    found = [files.read(uri) for uri in files.match(f"gs://state/{prefix}**.jsonl")]
    return {json.loads(line)["fingerprint"] for line in b"".join(found).splitlines()}


@pytest.mark.parametrize("refused", [1, 3])
def test_an_answer_whose_record_was_not_stored_is_not_in_the_journal(sandbox, refused):
    spec = spec_of(rows=20, safety={"audit": {"uri": "gs://state/audit"}}, limits={"max_in_flight": 64})
    fault = Fault(kind="error", http_status=403, message="denied")
    sandbox.faults.when("storage.objects.insert", "audit/date=", fault, times=refused)
    with pytest.raises(JobFailedError):
        run(spec)
    assert fingerprints("job/journal") <= fingerprints("audit/date=")
    run(spec)
    assert fingerprints("job/journal") == fingerprints("audit/date=")
    assert len(fingerprints("audit/date=")) == 20


def _killed(_: object) -> None:
    raise KeyboardInterrupt


def _write_and_load(spec: JobSpec) -> None:
    for number in range(2):
        line = b'{"record_id": "%d", "at": "2026-01-01T00:00:00Z", "masked": [{"kind": "EMAIL", "count": 2}]}\n'
        files.replace(f"gs://state/job/audit/{number}.jsonl", line % number)
    load_audit(spec)
