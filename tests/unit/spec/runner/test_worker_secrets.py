from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.runner import sink_needs_worker_secrets

GEMINI = {"type": "gemini"}
VERTEX = {"type": "gemini", "project": "a-project"}
POSTGRES = {"type": "postgres", "table": "answers"}
MILVUS = {"type": "milvus", "uri": "https://milvus.example", "collection": "c"}
SECRET = "projects/p/secrets/s/versions/latest"


@pytest.fixture
def spec(job):
    """Returns a function that makes a Dataflow job."""

    def make(runner=(), **parts):
        own = {"type": "dataflow", "location": "europe-west1", **dict(runner)}
        places = {"source": {"uri": "gs://b/in.jsonl", "key": ["id"]}, "sink": {"uri": "gs://b/out/"}}
        return JobSpec.parse(job(**places | {"state_uri": "gs://b/state/", "runner": own} | parts))

    return make


@pytest.mark.parametrize("runner", [{}, {"flex_template": "gs://b/template.json"}], ids=["door", "template"])
def test_gemini_without_a_project_needs_its_key_on_the_workers(spec, runner):
    ways = r"^`runner\.environment_secrets`: .*'GOOGLE_API_KEY': 'projects/….*, or set `model\.project`"
    with pytest.raises(JobSpecError, match=ways):
        spec(runner, model=GEMINI)


def test_openai_itself_needs_its_key_on_the_workers(spec):
    with pytest.raises(
        JobSpecError, match=r"need `MY_KEY` for the model: name its secret, \{'MY_KEY': 'projects/…"
    ):
        spec(model={"type": "openai", "name": "gpt", "api_key_env": "MY_KEY"})


def test_postgres_needs_its_connection_string_on_the_workers(spec):
    with pytest.raises(JobSpecError, match=r"need 'LLMBEAM_POSTGRES_DSN' for the sink: .*of type 'bigquery'"):
        spec(sink=POSTGRES)
    with pytest.raises(JobSpecError, match=r"need 'MY_DSN' for the sink"):
        spec(sink=POSTGRES | {"dsn_env": "MY_DSN"}, runner={"environment_secrets": {"OTHER": SECRET}})


@pytest.mark.parametrize(
    ("runner", "parts"),
    [
        ({"environment_secrets": {"GOOGLE_API_KEY": SECRET}}, {"model": GEMINI}),
        ({"environment_secrets": {"GEMINI_API_KEY": SECRET}}, {"model": GEMINI}),
        ({}, {"model": VERTEX}),
        ({"container_image": "image"}, {"model": GEMINI, "sink": POSTGRES}),
        ({"environment_secrets": {"LLMBEAM_POSTGRES_DSN": SECRET}}, {"sink": POSTGRES}),
        ({}, {"model": {"type": "openai", "name": "gemma", "base_url": "http://10.0.0.2:8000/v1"}}),
        ({"environment_secrets": {"OPENAI_API_KEY": SECRET}}, {"model": {"type": "openai", "name": "gpt"}}),
    ],
    ids=["key", "the other name", "vertex", "image", "dsn", "own server", "openai"],
)
def test_a_job_whose_workers_have_their_keys_is_valid(spec, runner, parts):
    assert spec(runner, **parts).environment_secrets == runner.get("environment_secrets", {})


def test_a_local_job_needs_no_secrets(job):
    spec = JobSpec.parse(job(model=GEMINI, sink=POSTGRES, state_uri="state"))
    assert (spec.environment_secrets, sink_needs_worker_secrets(spec.runner, spec.sink)) == ({}, False)


def test_only_workers_on_dataflow_need_secrets(spec):
    secrets = {"environment_secrets": {"GOOGLE_API_KEY": SECRET, "LLMBEAM_POSTGRES_DSN": SECRET}}
    found = spec(secrets, sink=POSTGRES)
    assert sink_needs_worker_secrets(found.runner, found.sink)
    found = spec(sink=MILVUS, task="embed")
    assert sink_needs_worker_secrets(found.runner, found.sink)
    found = spec()
    assert not sink_needs_worker_secrets(found.runner, found.sink)


def test_the_value_of_an_invalid_secret_name_is_never_quoted(spec):
    for value in ("AIza-the-key-itself", 7, None):
        with pytest.raises(JobSpecError, match=r"`runner\.environment_secrets") as caught:
            spec({"environment_secrets": {"GOOGLE_API_KEY": value}})
        assert "the-key" not in str(caught.value)


@pytest.mark.parametrize(
    "model",
    [
        {"type": "vertex_endpoint", "name": "g", "endpoint": "projects/p/locations/us-central1/endpoints/1"},
        {
            "type": "openai",
            "name": "g",
            "base_url": "https://a.run.app/v1",
            "id_token_audience": "https://a.run.app",
        },
    ],
    ids=["vertex", "cloud run"],
)
def test_google_cloud_endpoints_need_no_secret_on_the_workers(spec, model):
    assert spec(model=model).environment_secrets == {}
