"""Jobs whose keys are in Secret Manager for the workers, and not where the job is launched."""

from __future__ import annotations

import json
import os
import sys
import time

import apache_beam as beam
import psycopg
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from google.cloud import secretmanager, storage

from airflow_provider_llmbeam.pipeline.build import build
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.privacy.detection import detection_of
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.model import model

PARENT = "projects/llmbeam-sandbox"
KEYS = ("GOOGLE_API_KEY", "LLMBEAM_POSTGRES_DSN", "LLMBEAM_PRIVACY_KEY")


@pytest.fixture
def spec(google, sandbox, database, monkeypatch):
    """A Dataflow job over five rows with a Gemini API key and a PostgreSQL sink; this process has no key."""
    for name in KEYS:
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it at the end
        monkeypatch.delenv(name)
    with secretmanager.SecretManagerServiceClient(transport="rest") as client:
        for name, value in zip(KEYS, ("the-key", database, "too short"), strict=True):
            secret = client.create_secret(parent=PARENT, secret_id=name, secret={"replication": {"automatic": {}}})
            client.add_secret_version(parent=secret.name, payload={"data": value.encode()})
    lines = "\n".join(json.dumps({"id": number, "text": f"t{number}"}) for number in range(5))
    storage.Client().bucket("rows").blob("in.jsonl").upload_from_string(lines)
    return JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "gemini", "base_url": sandbox.gemini_url},
            "sink": {"type": "postgres", "table": "answers"},
            "state_uri": "gs://rows/state/",
            "runner": {
                "type": "dataflow",
                "location": "europe-west1",
                "environment_secrets": {name: f"{PARENT}/secrets/{name}/versions/latest" for name in KEYS[:2]},
            },
        }
    )


def run(spec):
    """Builds the graph as for Dataflow and runs it in this process, which is launcher and worker."""
    pipeline = beam.Pipeline(runner=FnApiRunner())
    build(pipeline, spec, RunContext(started_at=time.time()))
    assert not [name for name in KEYS if name in os.environ], "building needs no key"
    pipeline.run().wait_until_finish()


def methods(sandbox):
    return [one.method for one in sandbox.requests]


def test_workers_load_their_keys_and_publish(spec, sandbox, database):
    run(spec)
    with psycopg.connect(database) as connection:
        (count,) = connection.execute("SELECT count(*) FROM answers").fetchone()
    assert count == 5
    assert methods(sandbox).count("secretmanager.versions.access") == 2
    assert methods(sandbox).count("gemini.generateContent") == 5


def test_an_incompatible_sink_is_refused_by_a_worker_before_any_request(spec, sandbox, database):
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE answers (other int)")
    with pytest.raises(Exception, match=r"table 'answers' has no column 'id'"):
        run(spec)
    assert "gemini.generateContent" not in methods(sandbox)


def test_a_missing_secret_fails_the_job_before_any_request(spec, sandbox):
    elsewhere = dict.fromkeys(KEYS, f"{PARENT}/secrets/none/versions/latest")
    runner = spec.runner.model_copy(update={"environment_secrets": elsewhere})
    with pytest.raises(Exception, match=r"/secrets/none/versions/latest', for '\w+', does not exist"):
        run(spec.model_copy(update={"runner": runner}))
    assert "gemini.generateContent" not in methods(sandbox)


@pytest.mark.parametrize(
    ("secret", "error"),
    [
        ("none", r"/secrets/none/versions/latest', for 'LLMBEAM_PRIVACY_KEY', does not exist"),
        ("LLMBEAM_PRIVACY_KEY", r"the environment variable 'LLMBEAM_PRIVACY_KEY' has 9 characters"),
        (None, r"needs the extra 'privacy' where the job runs, on Dataflow in `runner\.container_image`"),
    ],
)
def test_workers_that_cannot_mask_personal_data_fail_the_job_before_any_request(
    spec, sandbox, monkeypatch, secret, error
):
    plain = spec.model_dump(mode="json")
    plain["safety"] = {"privacy": {}}
    plain["runner"]["environment_secrets"]["LLMBEAM_PRIVACY_KEY"] = f"{PARENT}/secrets/{secret}/versions/latest"
    if secret is None:
        monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the image")
        monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
        detection_of.cache_clear()
    pipeline = beam.Pipeline(runner=FnApiRunner())
    build(pipeline, JobSpec.parse(plain), RunContext(started_at=time.time()))
    with pytest.raises(Exception, match=error):
        pipeline.run().wait_until_finish()
    assert "gemini.generateContent" not in methods(sandbox)


def test_the_last_step_deletes_what_the_workers_have_uploaded(spec, sandbox, monkeypatch):
    monkeypatch.setattr(model, "MIB", 2**10)
    bucket = storage.Client().bucket("rows")
    for number in range(5):
        bucket.blob(f"{number}.mp4").upload_from_string(f"{number % 2}" * 100_000)
    prompt = {"template": "{{ row.text }}", "media": [{"uri": "gs://rows/{{ row.id }}.mp4"}]}
    run(JobSpec.parse({**spec.model_dump(mode="json"), "prompt": prompt}))
    assert methods(sandbox).count("gemini.files.upload") == 2 * 2
    assert methods(sandbox).count("gemini.generateContent") == 5
    assert sandbox.gemini_files.all == {}
