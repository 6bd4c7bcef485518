from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from google.api_core.exceptions import (
    BadRequest,
    Forbidden,
    NotFound,
    RetryError,
    ServiceUnavailable,
    TooManyRequests,
)
from google.auth.exceptions import DefaultCredentialsError

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.bigquery_jobs import (
    before_the_model,
    is_elsewhere,
    message_of,
    run_with_recorded_id,
    size_text,
)

RATE = [{"reason": "rateLimitExceeded", "message": "Exceeded rate limits"}]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("no"), JobSpecError),
        (Forbidden("no"), JobSpecError),
        (NotFound("no"), JobSpecError),
        (DefaultCredentialsError("no"), JobSpecError),
        (Forbidden("no", errors=RATE), JobFailedError),
        (TooManyRequests("no"), JobFailedError),
        (ServiceUnavailable("no"), JobFailedError),
        (RetryError("no", cause=None), JobFailedError),
    ],
)
def test_only_transient_errors_are_retryable(error: Exception, kind: type[Exception]) -> None:
    with (
        pytest.raises(kind, match=r"`source.table` 'p\.d\.t'.* Nothing was sent") as caught,
        before_the_model("`source.table` 'p.d.t'"),
    ):
        raise error
    assert caught.type is kind


def test_the_message_is_that_of_the_service() -> None:
    url = "GET https://bigquery.googleapis.com/x: Not found"
    assert message_of(NotFound(url, errors=[{"message": "Not found: Table p:d.t"}])) == "Not found: Table p:d.t."
    assert message_of(NotFound("gone")) == "gone."


@pytest.mark.parametrize(
    ("tables", "bucket", "bucket_type", "expected"),
    [
        ("US", "ASIA-NORTHEAST1", "region", False),
        ("EU", "EUROPE-WEST1", "region", False),
        ("EU", "US-CENTRAL1", "region", True),
        ("europe-west1", "EUROPE-WEST1", "region", False),
        ("europe-west1", "EUROPE-WEST4", "region", True),
        ("europe-west1", "EU", "multi-region", False),
        ("asia-northeast1", "ASIA1", "dual-region", False),
    ],
)
def test_only_locations_that_certainly_differ_are_elsewhere(
    tables: str, bucket: str, bucket_type: str, expected: bool
) -> None:
    assert is_elsewhere(tables, bucket, bucket_type) is expected


@pytest.mark.parametrize(
    ("count", "text"), [(None, "0 B"), (999, "999 B"), (1_200_000_000, "1.2 GB"), (5 * 10**15, "5,000.0 TB")]
)
def test_sizes_are_formatted_for_people(count: int | None, text: str) -> None:
    assert size_text(count) == text


def failed(work_id: str) -> str:
    raise ServiceUnavailable("gone")


def test_work_keeps_its_id_until_it_is_done(tmp_path: Path) -> None:
    uri = str(tmp_path / "begun.json")
    with pytest.raises(ServiceUnavailable):
        run_with_recorded_id(uri, {"table": "t"}, failed)
    begun = json.loads(Path(uri).read_text())["id"]
    assert run_with_recorded_id(uri, {"table": "t"}, str) == begun
    assert run_with_recorded_id(uri, {"table": "u"}, str) != begun


def test_work_that_failed_before_gets_a_new_id(tmp_path: Path) -> None:
    uri = str(tmp_path / "begun.json")
    first = run_with_recorded_id(uri, {}, str)

    def fails_again(work_id: str) -> str:
        return failed(work_id) if work_id == first else work_id

    assert run_with_recorded_id(uri, {}, fails_again) != first


def test_stale_or_incompletely_recorded_work_gets_a_new_id(tmp_path: Path) -> None:
    file = tmp_path / "begun.json"
    file.write_text(json.dumps({"of": {}, "id": "old", "begun_at": time.time() - 13 * 3600}))
    assert run_with_recorded_id(str(file), {}, str) != "old"
    file.write_text('{"of": {}, "id": "ha')
    assert run_with_recorded_id(str(file), {}, str) != "ha"
