"""Jobs as the providers report them, and as hostile servers do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.providers import vertex_batch
from airflow_provider_llmbeam.providers.anthropic import batch as anthropic
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.providers.gemini import batch as gemini
from airflow_provider_llmbeam.providers.openai import batch as openai
from airflow_provider_llmbeam.providers.vertex_batch import google_phase
from airflow_provider_llmbeam.transport.server_reply import count_of, error_line, time_of
from tests.hostile import altered, odd

NAME = "projects/1/locations/europe-west4/batchPredictionJobs/5"
VERTEX: Any = {
    "name": NAME,
    "displayName": "night-1",
    "model": "publishers/google/models/gemini-2.5-flash",
    "state": "JOB_STATE_PARTIALLY_SUCCEEDED",
    "createTime": "2026-01-01T00:00:00.123456789Z",
    "startTime": "2026-01-01T00:00:10Z",
    "endTime": "2026-01-01T00:01:00Z",
    "completionStats": {"successfulCount": "8", "incompleteCount": "2"},
    "outputInfo": {"gcsOutputDirectory": "gs://b/out/prediction-1"},
    "error": {"code": 8, "message": "Key AIza0123456789012345678901234567890123456\nis out of quota."},
}
GEMINI: Any = {
    "name": "batches/abc",
    "metadata": {
        "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
        "displayName": "night-1",
        "state": "BATCH_STATE_SUCCEEDED",
        "createTime": "2026-01-01T00:00:00Z",
        "endTime": "2026-01-01T00:01:00Z",
        "batchStats": {"requestCount": "10", "successfulRequestCount": "9", "failedRequestCount": "1"},
        "output": {"responsesFile": "files/batch-abc"},
        "inputConfig": {"fileName": "files/in"},
    },
    "done": True,
    "response": {"responsesFile": "files/batch-abc"},
}
OPENAI: Any = {
    "id": "batch_1",
    "status": "expired",
    "created_at": 1_767_225_600,
    "in_progress_at": 1_767_225_610,
    "expired_at": 1_767_225_660,
    "request_counts": {"total": 10, "completed": 9, "failed": 1},
    "metadata": {"display_name": "night-1"},
    "output_file_id": "file-1",
    "error_file_id": "file-2",
    "errors": {"data": [None, {"code": "batch_expired", "message": "Too late.", "line": None}]},
}
CLAUDE: Any = {
    "id": "msgbatch_1",
    "type": "message_batch",
    "processing_status": "ended",
    "created_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:01:00Z",
    "expires_at": "2026-01-02T00:00:00Z",
    "request_counts": {"processing": 0, "succeeded": 7, "errored": 2, "canceled": 0, "expired": 1},
    "results_url": "https://api.anthropic.com/v1/messages/batches/msgbatch_1/results",
}
START = 1_767_225_600.0


def test_a_job_of_vertex_ai_is_read() -> None:
    assert vertex_batch.vertex_job_of(VERTEX) == BatchJob(
        name=NAME,
        display_name="night-1",
        state="JOB_STATE_PARTIALLY_SUCCEEDED",
        phase="partial",
        created_at=START + 0.123456,
        started_at=START + 10,
        ended_at=START + 60,
        answered=8,
        failed=0,
        error="Key *** is out of quota.",
        results=("gs://b/out/prediction-1",),
    )


def test_a_job_of_the_developer_api_is_read() -> None:
    assert gemini.job_of(GEMINI) == BatchJob(
        name="batches/abc",
        display_name="night-1",
        state="BATCH_STATE_SUCCEEDED",
        phase="succeeded",
        created_at=START,
        ended_at=START + 60,
        answered=9,
        failed=1,
        results=("files/batch-abc",),
    )


def test_a_job_of_openai_is_read() -> None:
    assert openai.job_of(OPENAI) == BatchJob(
        name="batch_1",
        display_name="night-1",
        state="expired",
        phase="expired",
        created_at=START,
        started_at=START + 10,
        ended_at=START + 60,
        answered=9,
        failed=1,
        error="batch_expired: Too late.",
        results=("file-1", "file-2"),
    )


def test_a_batch_of_anthropic_is_read_and_its_results_are_at_the_address_of_the_model_alone() -> None:
    assert anthropic.job_of(CLAUDE) == BatchJob(
        name="msgbatch_1",
        display_name="",
        state="ended",
        phase="partial",
        created_at=START,
        ended_at=START + 60,
        answered=7,
        failed=2,
        rows=10,
        results=("messages/batches/msgbatch_1/results",),
    )


@pytest.mark.parametrize(
    ("status", "counts", "phase"),
    [
        ("in_progress", {"processing": 3}, "running"),
        ("canceling", {"processing": 3}, "cancelling"),
        ("ended", {"succeeded": 3}, "succeeded"),
        ("ended", {"succeeded": 2, "expired": 1}, "partial"),
        ("ended", {"succeeded": 1, "canceled": 2}, "cancelled"),
        ("ended", {"expired": 3}, "expired"),
        ("ended", {"errored": 3}, "failed"),
        ("of 2030", {"processing": 3}, "running"),
    ],
)
def test_the_phase_of_a_batch_of_anthropic_is_that_of_its_requests(status, counts, phase) -> None:
    assert anthropic.job_of({**CLAUDE, "processing_status": status, "request_counts": counts}).phase == phase


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("JOB_STATE_QUEUED", "queued"),
        ("JOB_STATE_PENDING", "queued"),
        ("BATCH_STATE_PENDING", "queued"),
        ("JOB_STATE_PAUSED", "queued"),
        ("JOB_STATE_RUNNING", "running"),
        ("JOB_STATE_UPDATING", "running"),
        ("JOB_STATE_CANCELLING", "cancelling"),
        ("JOB_STATE_CANCELLED", "cancelled"),
        ("BATCH_STATE_EXPIRED", "expired"),
        ("JOB_STATE_FAILED", "failed"),
        ("JOB_STATE_UNSPECIFIED", "running"),
        ("JOB_STATE_OF_2030", "running"),
        ("FAILED", "failed"),
        ("", "running"),
    ],
)
def test_an_unknown_state_of_google_counts_as_running(state, phase) -> None:
    assert google_phase(state) == phase


@pytest.mark.parametrize(
    ("state", "phase"),
    [("validating", "queued"), ("in_progress", "running"), ("finalizing", "running"), ("new", "running")],
)
def test_an_unknown_state_of_openai_counts_as_running(state, phase) -> None:
    job = openai.job_of({**OPENAI, "status": state})
    assert (job.phase, job.results) == (phase, ())


def test_a_finished_operation_in_an_unknown_state_has_ended() -> None:
    done = {**GEMINI, "metadata": {**GEMINI["metadata"], "state": "BATCH_STATE_OF_2030"}}
    assert gemini.job_of(done).phase == "succeeded"
    assert gemini.job_of({**done, "error": {"code": 13}}).phase == "failed"


@pytest.mark.parametrize(
    ("read", "reply"),
    [
        (vertex_batch.vertex_job_of, VERTEX),
        (gemini.job_of, GEMINI),
        (openai.job_of, OPENAI),
        (anthropic.job_of, CLAUDE),
    ],
)
def test_a_reply_without_a_valid_name_is_no_job(read, reply) -> None:
    for name in ("", "../batches/1", "batches/a/b", "batch 1", 5, None):
        assert read({**reply, "name": name, "id": name}) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2026-01-01T00:00:00Z", START),
        ("2026-01-01T01:00:00+01:00", START),
        ("2026-01-01T00:00:00", START),
        (int(START), START),
        ("yesterday", None),
        ("0001-01-01T00:00:00+23:59", None),
        (10**30, None),
        (True, None),
        (None, None),
    ],
)
def test_a_timestamp_is_read(value, seconds) -> None:
    assert time_of(value) == seconds


@pytest.mark.parametrize(
    ("value", "rows"),
    [("8", 8), (8, 8), (0, 0), (-1, None), ("-1", None), ("8.0", None), (True, None)],
)
def test_a_number_of_rows_is_read(value, rows) -> None:
    assert count_of(value) == rows


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({"code": 8, "message": "Out of\nquota."}, "Out of quota."),
        ({"code": "expired", "message": "Too late."}, "expired: Too late."),
        ({"code": 13}, "code 13, without a message"),
        ({"message": []}, "no message"),
        ({}, None),
        ("an error", None),
    ],
)
def test_an_error_is_shown_in_one_line(status, shown) -> None:
    assert error_line(status) == shown


@pytest.mark.fuzz
@given(altered(VERTEX, GEMINI, OPENAI, CLAUDE) | st.dictionaries(st.text(max_size=5), odd))
def test_whatever_a_server_reports_is_a_valid_job_or_none(reply: Any) -> None:
    for read in (vertex_batch.vertex_job_of, gemini.job_of, openai.job_of, anthropic.job_of):
        job = read(reply if isinstance(reply, dict) else {})
        if job is None:
            continue
        assert all(isinstance(text, str) for text in (job.name, job.display_name, job.state, *job.results))
        assert all(time is None or 0 <= time < 1e12 for time in (job.created_at, job.started_at, job.ended_at))
        assert all(count is None or 0 <= count < 10**18 for count in (job.answered, job.failed))
        assert job.error is None or len(job.error) <= 600
        assert job.has_ended or not job.results
