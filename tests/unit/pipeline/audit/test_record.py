from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.pipeline.audit.load import SCHEMA
from airflow_provider_llmbeam.pipeline.audit.record import account_of, key_hash
from airflow_provider_llmbeam.pipeline.audit.trail import AuditTrail, was_sent
from airflow_provider_llmbeam.spec import JobSpec

PROMPT = Prompt("the prompt", "the system")


def spec_of(**changes: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "gs://b/rows.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "gs://b/out"},
            **changes,
        }
    )


def trail(**audit: Any) -> AuditTrail:
    found = AuditTrail.of(spec_of(safety={"audit": {"uri": "gs://b/audit", **audit}}))
    assert found is not None
    return found


def completion(text: str = "an answer", **fields: Any) -> Completion:
    known = {"model": "m-1", "finish_reason": "stop", "tokens": Tokens(3, 2), "attempts": 1}
    return Completion(text=text, latency_seconds=0.1, sent_at=1.0, answered_at=2.0, **known, **fields)


def test_a_record_names_the_kinds_that_were_masked_only_for_a_job_that_masks() -> None:
    masked = {"EMAIL": 2, "PHONE": 1}
    private = dataclasses.replace(trail(), has_privacy=True)
    found = json.loads(private.line(completion(), "f", ("h",), "online", masked))
    assert found["masked"] == [{"kind": "EMAIL", "count": 2}, {"kind": "PHONE", "count": 1}]
    assert json.loads(private.line(completion(), "f", ("h",), "online", {}))["masked"] == []
    assert "masked" not in json.loads(private.line(completion(), "f", (), "online", None))
    assert "masked" not in json.loads(trail().line(completion(), "f", ("h",), "online", {}))


def record(outcome: Completion | Failure, **audit: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(trail(**audit).line(outcome, "f", ("h",), "online", None, PROMPT))
    return found


def test_an_unknown_price_is_null_and_another_one_is_in_dollars() -> None:
    assert record(completion())["cost_usd"] is None
    assert record(completion(cost_nano_usd=1_500_000_000))["cost_usd"] == 1.5


def test_each_record_has_an_identity_of_its_own() -> None:
    assert record(completion())["record_id"] != record(completion())["record_id"]


def test_a_failure_has_its_kind_and_never_the_message_of_the_server() -> None:
    found = record(Failure(kind="blocked", message="he said the prompt", http_status=400, attempts=2))
    assert (found["outcome"], found["http_status"], found["attempts"], found["model"]) == ("blocked", 400, 2, None)
    assert "he said" not in json.dumps(found)


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\ud83d\x00\n")))
def test_texts_are_in_the_record_if_they_are_asked_for_and_a_line_is_always_json(text: str) -> None:
    found = record(completion(text), include_text=True)
    assert (found["system"], found["prompt"]) == ("the system", "the prompt")
    assert found["answer"] == text.replace("\ud83d", "\ufffd")
    assert record(completion(text)).keys().isdisjoint({"system", "prompt", "answer"})


def test_the_hash_is_that_of_the_key_as_json() -> None:
    assert key_hash({"id": 17, "text": "x"}, ("id",)) == hashlib.sha256(b'{"id": 17}').hexdigest()


def test_a_prompt_that_was_not_sent_has_no_record() -> None:
    assert not was_sent(Failure(kind="not_sent", message=""))
    assert was_sent(Failure(kind="rate_limited", message="", rejections=1))
    assert was_sent(Failure(kind="flex_unavailable", message="", sheds=1))
    assert was_sent(completion())


def test_the_columns_of_the_table_are_the_fields_of_a_record() -> None:
    whole = dataclasses.replace(trail(include_text=True), has_privacy=True)
    found = json.loads(whole.line(completion(), "f", ("h",), "online", {"EMAIL": 1}, PROMPT))
    assert {field.name for field in SCHEMA} == found.keys()


URL = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/runs@p.iam:generateAccessToken"


@pytest.mark.parametrize(
    ("content", "account"),
    [
        ({"client_email": "a@p.iam"}, "a@p.iam"),
        ({"service_account_impersonation_url": URL, "client_email": "a@p.iam"}, "runs@p.iam"),
        ({"type": "authorized_user"}, None),
        ([], None),
        ({"client_email": 5}, None),
    ],
)
def test_the_account_is_that_of_the_credentials_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, account: str | None
) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps(content))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    assert account_of(spec_of()) == account


def test_without_a_readable_file_the_account_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert account_of(spec_of()) is None
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    assert account_of(spec_of()) is None


def test_on_dataflow_it_is_that_of_the_workers() -> None:
    runner = {"type": "dataflow", "project": "my-project", "location": "us-central1", "service_account": "w@p.iam"}
    assert account_of(spec_of(runner=runner)) == "w@p.iam"
