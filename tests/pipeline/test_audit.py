"""The audit trail of a job: one record per prompt that was sent, whatever became of the run."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.pipeline.batch_inference import decide
from airflow_provider_llmbeam.pipeline.batch_inference.run import BatchInference
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.measure.preview import make_preview
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.evaluation import PreviewSample
from tests.pipeline.conftest import read_lines

ROWS = [{"id": number, "text": f"row {number}"} for number in range(12)]


def audited(job: Any, **fields: Any) -> dict[str, Any]:
    return {"safety": {"audit": {"uri": str(job.directory / "audit"), **fields}}}


def records(directory: Path) -> list[dict[str, Any]]:
    return [record for path in sorted((directory / "audit").rglob("*.jsonl")) for record in read_lines(path)]


def key_hash(number: int) -> str:
    return hashlib.sha256(json.dumps({"id": number}).encode()).hexdigest()


def test_each_request_has_one_record_with_the_tokens_and_cost_of_the_report(job, monkeypatch, tmp_path):
    credentials = tmp_path / "credentials.json"
    credentials.write_text(json.dumps({"client_email": "runs@p.iam.gserviceaccount.com"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(credentials))
    run = {"dag_id": "tickets", "task_id": "judge", "run_id": "manual__1"}
    ended = job.run([*ROWS, {"id": 99, "text": "row 3"}], airflow_run=run, **audited(job))
    found = records(job.directory)
    assert len(found) == len(ROWS)
    hashes = Counter(each for record in found for each in record["row_key_hashes"])
    assert hashes == Counter(key_hash(number) for number in (*range(12), 99))
    for name in ("input", "output"):
        assert sum(record[f"{name}_tokens"] for record in found) == ended.report["tokens"][name]
    assert sum(record["cost_usd"] for record in found) == pytest.approx(ended.report["cost_usd"], abs=1e-6)
    assert {record["fingerprint"] for record in found} == {row["llmbeam_fingerprint"] for row in ended.answers}
    shared = {
        name: {record[name] for record in found} for name in ("job", "dag_id", "task_id", "run_id", "account")
    }
    assert shared == {
        "job": {"job"},
        "dag_id": {"tickets"},
        "task_id": {"judge"},
        "run_id": {"manual__1"},
        "account": {"runs@p.iam.gserviceaccount.com"},
    }
    assert {(record["outcome"], record["origin"], record["service_tier"]) for record in found} == {
        ("answered", "online", "standard")
    }


def test_no_text_is_in_the_records_unless_it_is_asked_for(job):
    job.run(ROWS, **audited(job))
    assert all("prompt" not in record and "answer" not in record for record in records(job.directory))
    text = "".join(path.read_text() for path in (job.directory / "audit").rglob("*.jsonl"))
    assert "row 3" not in text
    assert "Say it" not in text
    sink = job.spec["sink"] | {"on_existing": "take_over"}
    job.run(ROWS, **audited(job, include_text=True), name="other", sink=sink)
    with_text = [record for record in records(job.directory) if record["job"] == "other"]
    assert {record["prompt"] for record in with_text} == {f"Say it: row {number}" for number in range(12)}
    assert all(record["answer"] for record in with_text)


def test_answers_of_the_journal_make_no_record(job):
    job.run(ROWS[:8], **audited(job))
    before = {path: path.read_bytes() for path in (job.directory / "audit").rglob("*.jsonl")}
    job.run(ROWS, **audited(job))
    assert len(records(job.directory)) == len(ROWS)
    assert {path: path.read_bytes() for path in before} == before  # files are only added


def test_a_refused_request_has_a_record_with_its_kind(job, sandbox):
    sandbox.faults.queue("gemini.generateContent", Fault(kind="error", http_status=400, message="no"))
    job.run(ROWS[:4], **audited(job))
    outcomes = Counter(record["outcome"] for record in records(job.directory))
    assert outcomes == {"answered": 3, "bad_request": 1}
    (refused,) = (record for record in records(job.directory) if record["outcome"] == "bad_request")
    assert refused["http_status"] == 400
    assert refused["model"] is None


def test_a_row_that_becomes_no_prompt_has_no_record(job):
    job.run([*ROWS[:2], {"id": 50}], **audited(job))
    assert len(records(job.directory)) == 2


def test_a_run_that_exceeds_its_budget_has_a_record_of_each_answer(job):
    with pytest.raises(LLMBeamError):
        job.run(ROWS, **audited(job), limits={"budget_usd": 1e-9, "max_in_flight": 1})
    journal = [line for path in (job.out / ".llmbeam").rglob("journal*/*.jsonl") for line in read_lines(path)]
    assert journal
    assert {record["fingerprint"] for record in records(job.directory)} == {
        line["fingerprint"] for line in journal
    }


def test_the_rows_of_an_estimate_and_a_preview_have_their_records_before_the_job_runs(job):
    job.write(ROWS)
    spec = JobSpec.parse(job.spec | audited(job))
    make_estimate(spec, 4)
    assert len(records(job.directory)) == 4
    make_preview(spec, PreviewSample(keys=("3", "4", "5", "6", "7", "8", "9")))
    assert run(spec)["rows"]["answered"] == len(ROWS)
    hashes = Counter(each for record in records(job.directory) for each in record["row_key_hashes"])
    assert hashes == Counter(key_hash(number) for number in range(12))


def test_a_directory_that_cannot_be_written_is_refused_before_anything_is_sent(job, sandbox, tmp_path):
    (tmp_path / "audit").write_text("a file")
    with pytest.raises(LLMBeamError, match=r"Nothing was sent or billed"):
        job.run(ROWS, **audited(job))


@pytest.mark.full
def test_batch_inference_has_records_with_the_rows_and_no_second_one_after_a_crash(job, monkeypatch):
    monkeypatch.setattr(decide, "MIN_POLL_SECONDS", 0.05)
    monkeypatch.setattr(decide, "MAX_POLL_SECONDS", 0.05)
    rows = [{"id": number, "text": f"row {number}"} for number in range(60)]
    job.write(rows)
    spec = JobSpec.parse(job.spec | audited(job) | {"inference": {"mode": "batch"}})
    with monkeypatch.context() as patched:
        patched.setattr(BatchInference, "_count_unreturned", _killed)  # the results are read, and nobody knows it
        patched.setattr(BatchInference, "_save", lambda self, **changes: None)
        with pytest.raises(KeyboardInterrupt):
            run(spec)
    run(spec)
    found = [record for record in records(job.directory) if record["origin"] == "batch"]
    hashes = Counter(each for record in records(job.directory) for each in record["row_key_hashes"])
    assert hashes == Counter(key_hash(number) for number in range(60))
    assert 0 < len(found) < len(rows)  # the pilot is sent online
    assert {record["service_tier"] for record in found} == {"batch"}
    assert {record["cost_usd"] for record in found} != {None}


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
