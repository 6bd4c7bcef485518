from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.pipeline.audit.account import account_of
from airflow_provider_llmbeam.spec import JobSpec

URL = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/runs@p.iam:generateAccessToken"


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
