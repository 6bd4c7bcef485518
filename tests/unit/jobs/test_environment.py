"""The process of a job gets what it needs of the worker's environment, and no other secret."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.jobs.environment import configured_variables, job_environment
from airflow_provider_llmbeam.spec import JobSpec

SYSTEM = {
    "PATH": "/bin",
    "HOME": "/home/airflow",
    "LC_ALL": "C",
    "PYTHONPATH": "/dags",
    "REQUESTS_CA_BUNDLE": "/ca.pem",
    "https_proxy": "http://u:p@proxy:3128",
    "GOOGLE_APPLICATION_CREDENTIALS": "/key.json",
    "GOOGLE_CLOUD_PROJECT": "p",
    "CLOUDSDK_CONFIG": "/gcloud",
    "GCE_METADATA_HOST": "127.0.0.1",
    "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1",
    "LLMBEAM_SANDBOX_URL": "http://127.0.0.1:1",
}
SECRETS = {
    "AIRFLOW__CORE__FERNET_KEY": "f",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://a:b@c/d",
    "AIRFLOW__API_AUTH__JWT_SECRET": "j",
    "AIRFLOW_CONN_OTHER": "{}",
    "GOOGLE_API_KEY": "g",
    "GEMINI_API_KEY": "g",
    "OPENAI_API_KEY": "o",
    "CLOUDSDK_AUTH_ACCESS_TOKEN": "t",
    "AWS_SECRET_ACCESS_KEY": "a",
    "LLMBEAM_POSTGRES_DSN": "postgresql://a:b@c/d",
    "PGPASSWORD": "p",
    "MILVUS_TOKEN": "m",
    "HF_TOKEN": "h",
    "LLMBEAM_SANDBOX_TOKEN": "s",
}
POSTGRES = {"type": "postgres", "table": "t"}


def spec(**parts: Any) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "j",
            "source": {"uri": "in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "out"},
            "state_uri": "state",
        }
        | parts
    )


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"])
def test_a_job_gets_the_address_of_its_server(name: str) -> None:
    assert job_environment(spec(), {}, {name: "http://127.0.0.1:1"}) == {name: "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, set()),
        ({"model": {"type": "gemini"}}, {"GOOGLE_API_KEY", "GEMINI_API_KEY"}),
        ({"model": {"type": "gemini", "project": "p"}}, set()),
        ({"model": {"type": "openai", "name": "m"}}, {"OPENAI_API_KEY"}),
        ({"model": {"type": "openai", "name": "m", "api_key_env": "HF_TOKEN"}}, {"HF_TOKEN"}),
        ({"model": {"type": "openai", "name": "m", "id_token_audience": "https://a.run.app"}}, set()),
        ({"sink": POSTGRES}, {"LLMBEAM_POSTGRES_DSN", "PGPASSWORD"}),
        ({"sinks": [POSTGRES]}, {"LLMBEAM_POSTGRES_DSN", "PGPASSWORD"}),
        (
            {
                "task": "embed",
                "model": {"type": "echo"},
                "sink": {"type": "milvus", "uri": "http://h", "collection": "c"},
            },
            {"MILVUS_TOKEN"},
        ),
        ({"source": {"uri": "s3://b/in.jsonl", "key": ["id"]}}, {"AWS_SECRET_ACCESS_KEY"}),
    ],
)
def test_a_job_gets_the_keys_that_its_spec_names(parts, expected):
    found = job_environment(spec(**parts), {}, SYSTEM | SECRETS)
    assert found.keys() & SECRETS.keys() == expected
    assert {name: found[name] for name in SYSTEM} == SYSTEM


def test_a_variable_for_the_job_replaces_that_of_the_worker():
    model = {"type": "openai", "name": "m"}
    found = job_environment(spec(model=model), {"OPENAI_API_KEY": "mine"}, {"OPENAI_API_KEY": "o"})
    assert found == {"OPENAI_API_KEY": "mine"}


def test_configured_variables_are_passed_on_whatever_their_names():
    found = job_environment(spec(), {}, SECRETS | {"KRB5CCNAME": "k"}, ["AWS_*", "KRB5CCNAME"])
    assert found.keys() == {"AWS_SECRET_ACCESS_KEY", "KRB5CCNAME"}


def test_the_configuration_of_airflow_names_further_variables(monkeypatch):
    monkeypatch.setenv("AIRFLOW__LLMBEAM__JOB_ENVIRONMENT", "AWS_*, KRB5CCNAME\n")
    assert configured_variables() == ("AWS_*", "KRB5CCNAME")
    monkeypatch.delenv("AIRFLOW__LLMBEAM__JOB_ENVIRONMENT")
    assert configured_variables() == ()


@pytest.mark.parametrize("given", ["A, TOKEN=topsecret", "*", "A*B", "1A"])
def test_an_item_that_is_no_name_is_refused_and_not_repeated(monkeypatch, given):
    monkeypatch.setenv("AIRFLOW__LLMBEAM__JOB_ENVIRONMENT", given)
    with pytest.raises(JobSpecError, match=r"item \d is not the name of an environment variable") as caught:
        configured_variables()
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("configured", [("*",), ("AIRFLOW_*",), ("AIRFLOW__CORE__FERNET_KEY",)])
def test_no_job_gets_the_configuration_of_airflow(configured: tuple[str, ...]) -> None:
    given = {"AIRFLOW__CORE__SECRET": "s"}
    found = job_environment(spec(), given, SYSTEM | SECRETS, configured)
    assert not [name for name in found if name.startswith("AIRFLOW__")]
