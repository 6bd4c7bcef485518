"""What is refused before a job is on Dataflow: one sentence after few calls, no job, no cost, no retry."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from llmbeam_sandbox import DataflowSettings, Fault, Sandbox

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.jobs.client import connect
from airflow_provider_llmbeam.jobs.launcher import JobLauncher
from airflow_provider_llmbeam.spec import JobSpec

#: Maximum of refused calls per method and object. One retried until its timeout (60 s) is sent fifteen times.
MOST_REFUSED_CALLS = 5
TEMPLATE_URI = "gs://rows/template.json"


@dataclass(frozen=True)
class Refusal:
    """A job that cannot run.

    Attributes:
        words: Part of the message.
        runner: Fields of its runner.
        fields: Other fields of its spec.
        forbidden: Methods that the account may not call.
        template: Text of the template, if there is one.
    """

    words: str
    runner: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    forbidden: tuple[str, ...] = ()
    template: str | None = None


OTHER_SINK = {"sink": {"uri": "gs://no-such-bucket/out"}}
FROM_TEMPLATE = {"flex_template": TEMPLATE_URI}
REFUSALS = {
    "unknown project": Refusal("'no-such-project'", {"project": "no-such-project"}),
    "unknown region": Refusal("atlantis-north1234", {"location": "atlantis-north1234"}),
    "unknown machine type": Refusal("n9-enormous-3", {"machine_type": "n9-enormous-3"}),
    "no bucket of temp_uri": Refusal("no-such-bucket", {"temp_uri": "gs://no-such-bucket/tmp"}),
    "no bucket of the sink": Refusal("no-such-bucket", {}, OTHER_SINK),
    "no bucket of the sink, but one of temp_uri": Refusal(
        "no-such-bucket", {"temp_uri": "gs://rows/tmp"}, OTHER_SINK
    ),
    "no bucket of the source": Refusal(
        "no-such-bucket", {}, {"source": {"uri": "gs://no-such-bucket/in.jsonl", "key": ["id"]}}
    ),
    "no file of the source": Refusal(
        "no-such-file.jsonl", {}, {"source": {"uri": "gs://rows/no-such-file.jsonl", "key": ["id"]}}
    ),
    "jobs may not be listed": Refusal("roles/dataflow.developer", forbidden=("dataflow.jobs.list",)),
    "jobs may not be created": Refusal("roles/dataflow.developer", forbidden=("dataflow.jobs.create",)),
    "objects may not be listed": Refusal("roles/storage.objectAdmin", forbidden=("storage.objects.list",)),
    "objects may not be written": Refusal(
        "gs://rows", forbidden=("storage.objects.insert", "storage.uploads.start")
    ),
    "no template": Refusal(TEMPLATE_URI, FROM_TEMPLATE),
    "a template that is not JSON": Refusal(TEMPLATE_URI, FROM_TEMPLATE, template="This is not JSON."),
    "templates may not be launched": Refusal(
        "roles/dataflow.developer",
        FROM_TEMPLATE,
        forbidden=("dataflow.flexTemplates.launch",),
        template='{"image": "example/llmbeam:1"}',
    ),
}


@pytest.fixture
def sandbox():
    with Sandbox(buckets=("rows",), dataflow=DataflowSettings(projects=("llmbeam-sandbox",))) as running:
        yield running


@pytest.fixture
def refused(google, sandbox, log):
    """Returns a function that launches a job that must be refused."""
    from google.cloud import storage

    bucket = storage.Client().bucket("rows")
    bucket.blob("in.jsonl").upload_from_string('{"id": 1, "text": "row"}\n')

    def launch(refusal: Refusal) -> None:
        runner = {"type": "dataflow", "project": google.project, "location": "europe-west1"}
        spec = {
            "name": "nightly",
            "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
            "prompt": {"template": "Say {{ row.text }}"},
            "model": {"type": "gemini", "project": google.project},
            "sink": {"uri": "gs://rows/out"},
            "runner": runner | refusal.runner,
        }
        if refusal.template is not None:
            bucket.blob("template.json").upload_from_string(refusal.template)
        for method in refusal.forbidden:
            sandbox.faults.every(method, 1, Fault(kind="error", http_status=403))
        client = partial(connect, gcp_conn_id="google_cloud_default", impersonation_chain=None)
        launcher = JobLauncher(client, None, log)
        with pytest.raises(LLMBeamError) as caught:
            launcher.obtain(JobSpec.parse(spec | refusal.fields))
        assert not caught.value.retryable
        calls = Counter(
            (record.method, record.resource) for record in sandbox.requests if (record.http_status or 0) >= 400
        )
        assert max(calls.values(), default=0) <= MOST_REFUSED_CALLS, f"nothing is tried again: {calls}"
        assert sandbox.dataflow.jobs == []
        assert sandbox.stats()["billed_answers"] == 0
        assert not sandbox.refused_hosts
        message = str(caught.value)
        assert refusal.words in message
        assert message.count("Nothing was sent or billed.") == 1
        assert "\n" not in message
        assert "{" not in message, "the message of the service, not its JSON"

    return launch


@pytest.mark.parametrize("case", REFUSALS)
def test_a_job_that_cannot_run_is_refused_before_it_is_submitted(refused, case):
    refused(REFUSALS[case])


def test_a_missing_credentials_file_is_refused(refused, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    refused(Refusal("/nowhere/key.json"))


def test_missing_credentials_are_refused(refused, monkeypatch, tmp_path):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    refused(Refusal("gcloud auth application-default login"))
