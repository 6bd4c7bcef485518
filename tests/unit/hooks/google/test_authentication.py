"""When a job uses the account of the Airflow connection."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.google.authentication import google_credentials, uses_google, with_key
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.operators.review_answers import AddGoldenRowsOperator, SampleAnswersOperator
from airflow_provider_llmbeam.spec import JobSpec

LOCAL: dict[str, Any] = {
    "source": {"uri": "/in/*.jsonl", "key": ["id"]},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "openai", "name": "m", "base_url": "http://127.0.0.1:9/v1"},
    "sink": {"uri": "/out/"},
    "state_uri": "/state/",
}


def job(**parts: Any) -> JobSpec:
    return JobSpec.parse({"name": "nightly", **LOCAL, **parts})


def prompt(**media: str) -> dict[str, Any]:
    return {"prompt": {"template": "{{ row.text }}", "media": [{"mime_type": "image/png", **media}]}}


def privacy(detector: Any) -> dict[str, Any]:
    return {"safety": {"privacy": {"key_env": "SECRET", "detectors": [detector]}}}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, False),
        ({"state_uri": "gs://state/"}, True),
        ({"sink": {"type": "bigquery", "table": "p.d.answers"}}, True),
        ({"sinks": [{"type": "pubsub", "topic": "projects/p/topics/a"}]}, True),
        ({"safety": {"audit": {"table": "p.d.audit"}}}, True),
        ({"safety": {"audit": {"uri": "gs://audit/llm"}}}, True),
        ({"safety": {"audit": {"uri": "/audit"}}}, False),
        (privacy({"type": "dlp", "project": "my-project"}), True),
        (privacy("patterns"), False),
        (prompt(uri="gs://pictures/{{ row.picture }}"), True),
        (prompt(uri="{{ row.picture }}", root="gs://pictures/"), True),
        (prompt(uri="/pictures/{{ row.picture }}"), False),
    ],
)
def test_a_job_with_any_place_or_service_on_google_cloud_uses_the_account(
    parts: dict[str, Any], expected: bool
) -> None:
    assert uses_google(job(**parts)) == expected


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> str:
    """The key of the connection, which is that of no machine."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    extra = {"keyfile_dict": {"type": "service_account", "client_email": "job@p.example"}}
    connection = {"conn_type": "google_cloud_platform", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(connection))
    return "job@p.example"


def used_account() -> str | None:
    path = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return None if path is None else str(json.loads(Path(path).read_text())["client_email"])


@pytest.mark.full
def test_the_audit_of_a_local_job_is_written_with_the_account_of_the_connection(account: str) -> None:
    with google_credentials(job(safety={"audit": {"table": "p.d.audit"}}), "google_cloud_default"):
        assert used_account() == account
    with google_credentials(job(), "google_cloud_default"):
        assert used_account() is None


VERDICT = {"review_uri": "gs://b/review.jsonl", "key": "[1]", "is_accepted": False, "values": {}}


@pytest.mark.parametrize(
    ("operator", "arguments", "expected"),
    [
        (SampleAnswersOperator, {}, None),
        (SampleAnswersOperator, {"golden": {"uri": "gs://b/golden.jsonl", "key": "id"}}, "job@p.example"),
        (SampleAnswersOperator, {"golden": {"type": "bigquery", "table": "p.d.t", "key": "id"}}, "job@p.example"),
        (SampleAnswersOperator, {"review_uri": "gs://b/review.jsonl"}, "job@p.example"),
        (AddGoldenRowsOperator, {"golden_uri": "/golden.jsonl", "verdicts": []}, None),
        (AddGoldenRowsOperator, {"golden_uri": "gs://b/golden.jsonl", "verdicts": []}, "job@p.example"),
        (AddGoldenRowsOperator, {"golden_uri": "/golden.jsonl", "verdicts": [VERDICT]}, "job@p.example"),
    ],
)
def test_a_golden_set_on_cloud_storage_is_read_and_written_with_the_account_of_the_connection(
    operator: Any, arguments: dict[str, Any], expected: str | None, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str | None] = []

    def run_step(process: JobProcess, name: str, given: Any) -> dict[str, Any]:
        used.append(used_account())
        return {"reviews": []}

    monkeypatch.setattr(JobProcess, "run_step", run_step)
    own = {"manifest": {"name": "night"}} if operator is SampleAnswersOperator else {}
    task = operator(task_id="review", **LOCAL, **own, **arguments)
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, xcom_push=lambda **_: None)
    task.execute({"ti": ti})
    assert used == [expected]


KEY = "projects/keys/locations/europe-west1/keyRings/llmbeam/cryptoKeys/state"


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> str:
    connection = {"conn_type": "google_cloud_platform", "extra": {"kms_key_name": KEY}}
    monkeypatch.setenv("AIRFLOW_CONN_KEYED", json.dumps(connection))
    return "keyed"


def test_a_job_that_uses_google_cloud_gets_the_key_of_the_connection_unless_it_has_its_own(keyed: str) -> None:
    own = KEY.replace("state", "own")
    assert with_key(job(state_uri="gs://state/"), keyed).kms_key_name == KEY
    assert with_key(job(state_uri="gs://state/", kms_key_name=own), keyed).kms_key_name == own
    assert with_key(job(state_uri="gs://state/"), "google_cloud_default").kms_key_name is None
    assert with_key(job(), "no-such-connection").kms_key_name is None


def test_a_job_that_the_key_of_the_connection_cannot_encrypt_is_refused(keyed: str) -> None:
    sink = {"type": "bigquery", "table": "p.d.answers", "location": "US"}
    with pytest.raises(JobSpecError, match=r"`kms_key_name`: must be a key in 'us' for `sink\.location` 'US'"):
        with_key(job(sink=sink), keyed)
