"""Errors before a job is on Dataflow: one message after few calls, no job, no cost, no retry."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.sandbox import DataflowSettings, Fault, Sandbox

pytestmark = pytest.mark.slow

#: Maximum of refused calls per method until the task fails. A request that is retried until its timeout (60 s) is
#: sent some fifteen times.
MOST_REFUSED_CALLS = 10
FORBIDDEN = Fault(kind="error", http_status=403)
DATAFLOW = {"type": "dataflow", "location": "europe-west1"}
TEMPLATE_URI = "gs://rows/template.json"


@pytest.fixture
def sandbox():
    with Sandbox(buckets=("rows",), dataflow=DataflowSettings(projects=("llmbeam-sandbox",))) as running:
        yield running


@pytest.fixture
def bucket(google):
    from google.cloud import storage

    found = storage.Client().bucket("rows")
    found.blob("in.jsonl").upload_from_string('{"id": 1, "text": "row"}\n')
    return found


@pytest.fixture
def refusal(run_dag, google, sandbox, bucket):
    """Returns a function that runs a task that must be refused and returns the error message."""

    def run(more=None, **changes) -> str:
        errors = []
        arguments = {
            "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
            "prompt": {"template": "Say {{ row.text }}"},
            "model": {"type": "gemini", "project": "llmbeam-sandbox"},
            "sink": {"uri": "gs://rows/out"},
            "runner": DATAFLOW | (more or {}),
        }
        with DAG("refused", schedule=None) as dag:
            RunInferenceOperator(
                task_id="ask",
                retries=2,
                retry_delay=timedelta(0),
                on_failure_callback=lambda context: errors.append(context["exception"]),
                **(arguments | changes),
            )
        dag_run, states = run_dag(dag)
        (error,) = errors
        calls = {name: found["calls"] for name, found in sandbox.stats()["methods"].items() if found["calls"]}
        print(f"\n{calls}: {type(error).__name__}: {error}")
        assert states == {"ask": "failed"}
        assert isinstance(error, AirflowFailException), "a retry would repeat it"
        assert dag_run.get_task_instance("ask").try_number == 1
        refused = Counter(record.method for record in sandbox.requests if (record.http_status or 0) >= 400)
        assert max(refused.values(), default=0) <= MOST_REFUSED_CALLS, f"nothing is tried again: {refused}"
        assert sandbox.dataflow.jobs == []
        assert sandbox.stats()["billed_answers"] == 0
        assert not sandbox.refused_hosts
        message = str(error)
        assert message.count("Nothing was sent or billed.") == 1
        assert "\n" not in message
        return message

    return run


def test_an_unknown_project_is_refused(refusal):
    message = refusal({"project": "no-such-project"})
    assert "'no-such-project'" in message


def test_a_missing_bucket_of_temp_uri_is_refused(refusal):
    message = refusal({"temp_uri": "gs://no-such-bucket/tmp"})
    assert "no-such-bucket" in message


def test_a_missing_bucket_of_the_sink_is_refused(refusal):
    message = refusal(sink={"uri": "gs://no-such-bucket/out"})
    assert "no-such-bucket" in message


def test_a_missing_bucket_of_the_sink_is_refused_although_that_of_temp_uri_exists(refusal):
    message = refusal({"temp_uri": "gs://rows/tmp"}, sink={"uri": "gs://no-such-bucket/out"})
    assert "no-such-bucket" in message


def test_a_missing_bucket_of_the_source_is_refused(refusal):
    message = refusal(source={"uri": "gs://no-such-bucket/in.jsonl", "key": ["id"]})
    assert "no-such-bucket" in message


def test_a_missing_file_of_the_source_is_refused(refusal):
    message = refusal(source={"uri": "gs://rows/no-such-file.jsonl", "key": ["id"]})
    assert "no-such-file.jsonl" in message


def test_a_missing_bucket_of_the_sink_is_refused_without_dataflow_too(refusal):
    message = refusal(sink={"uri": "gs://no-such-bucket/out"}, runner=None)
    assert "no-such-bucket" in message


def test_an_account_without_permission_to_list_jobs_is_refused(refusal, sandbox):
    sandbox.faults.every("dataflow.jobs.list", 1, FORBIDDEN)
    message = refusal()
    assert "roles/dataflow.developer" in message


def test_an_account_without_permission_to_create_jobs_is_refused(refusal, sandbox):
    sandbox.faults.every("dataflow.jobs.create", 1, FORBIDDEN)
    message = refusal()
    assert "roles/dataflow.developer" in message


def test_an_account_without_permission_to_list_the_bucket_is_refused(refusal, sandbox):
    sandbox.faults.every("storage.objects.list", 1, FORBIDDEN)
    message = refusal()
    assert "roles/storage.objectAdmin" in message


def test_an_account_without_permission_to_write_to_the_bucket_is_refused(refusal, sandbox):
    sandbox.faults.every("storage.objects.insert", 1, FORBIDDEN)
    sandbox.faults.every("storage.uploads.start", 1, FORBIDDEN)
    message = refusal()
    assert "gs://rows" in message
    assert "{" not in message, "the message of the service, not its JSON"


def test_a_missing_credentials_file_is_refused(refusal, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    message = refusal()
    assert "/nowhere/key.json" in message


def test_missing_credentials_are_refused(refusal, monkeypatch, tmp_path):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    message = refusal()
    assert "gcloud auth application-default login" in message


def test_an_unknown_machine_type_is_refused(refusal):
    message = refusal({"machine_type": "n9-enormous-3"})
    assert "n9-enormous-3" in message


def test_an_unknown_region_is_refused(refusal):
    message = refusal({"location": "atlantis-north1234"})
    assert "atlantis-north1234" in message


def test_a_missing_template_is_refused(refusal):
    message = refusal({"flex_template": TEMPLATE_URI})
    assert TEMPLATE_URI in message


def test_a_template_that_is_not_json_is_refused(refusal, bucket):
    bucket.blob("template.json").upload_from_string("This is not JSON.")
    message = refusal({"flex_template": TEMPLATE_URI})
    assert TEMPLATE_URI in message


def test_a_template_launch_without_permission_is_refused(refusal, bucket, sandbox):
    bucket.blob("template.json").upload_from_string('{"image": "example/llmbeam:1"}')
    sandbox.faults.every("dataflow.flexTemplates.launch", 1, FORBIDDEN)
    message = refusal({"flex_template": TEMPLATE_URI})
    assert "roles/dataflow.developer" in message


def test_an_impersonation_chain_without_dataflow_is_refused(refusal):
    message = refusal(runner={"type": "direct"}, impersonation_chain="a@llmbeam-sandbox.iam.gserviceaccount.com")
    assert "`impersonation_chain`" in message


def test_a_missing_connection_is_refused(refusal):
    message = refusal(gcp_conn_id="no_such_connection")
    assert "'no_such_connection'" in message


def test_local_paths_are_refused_when_the_dag_is_parsed(tmp_path):
    with pytest.raises(JobSpecError) as caught:
        RunInferenceOperator(
            task_id="ask",
            source={"uri": str(tmp_path / "in.jsonl"), "key": ["id"]},
            prompt={"template": "Say {{ row.text }}"},
            model={"type": "gemini", "project": "llmbeam-sandbox"},
            sink={"uri": str(tmp_path / "out")},
            runner=DATAFLOW,
        )
    message = str(caught.value)
    assert "`source.uri`" in message
    assert "`sink.uri`" in message
    assert "gs://" in message
