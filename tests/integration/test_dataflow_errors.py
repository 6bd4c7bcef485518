"""Errors before a job is on Dataflow: one message after few calls, no job, no cost, no retry.

`tests/unit/jobs/test_refusals.py` has all of them.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from llmbeam_sandbox import DataflowSettings, Sandbox

from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

pytestmark = [pytest.mark.full, pytest.mark.slow]

#: Maximum of refused calls per method and object. One retried until its timeout (60 s) is sent fifteen times.
MOST_REFUSED_CALLS = 5
DATAFLOW = {"type": "dataflow", "location": "europe-west1"}


@pytest.fixture
def sandbox():
    with Sandbox(buckets=("rows",), dataflow=DataflowSettings(projects=("llmbeam-sandbox",))) as running:
        yield running


@pytest.fixture
def refusal(run_dag, google, sandbox):
    """Returns a function that runs a task that must be refused and returns the error message."""
    from google.cloud import storage

    storage.Client().bucket("rows").blob("in.jsonl").upload_from_string('{"id": 1, "text": "row"}\n')

    def run(**changes) -> str:
        errors = []
        arguments = {
            "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
            "prompt": {"template": "Say {{ row.text }}"},
            "model": {"type": "gemini", "project": "llmbeam-sandbox"},
            "sink": {"uri": "gs://rows/out"},
            "runner": DATAFLOW,
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
        refused = Counter(
            (record.method, record.resource) for record in sandbox.requests if (record.http_status or 0) >= 400
        )
        assert max(refused.values(), default=0) <= MOST_REFUSED_CALLS, f"nothing is tried again: {refused}"
        assert sandbox.dataflow.jobs == []
        assert sandbox.stats()["billed_answers"] == 0
        assert not sandbox.refused_hosts
        message = str(error)
        assert message.count("Nothing was sent or billed.") == 1
        assert "\n" not in message
        return message

    return run


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sink": {"uri": "gs://no-such-bucket/out"}}, "no-such-bucket"),
        ({"gcp_conn_id": "no_such_connection"}, "'no_such_connection'"),
        ({"impersonation_chain": "a@b.iam", "runner": {"type": "direct"}}, "`impersonation_chain`"),
        ({"runner": DATAFLOW | {"machine_type": "n9-enormous-3"}}, "n9-enormous-3"),
    ],
    ids=["by Cloud Storage", "without a connection", "by the operator", "by Dataflow"],
)
def test_a_task_that_is_refused_fails_with_one_sentence_and_is_not_retried(refusal, changes, words):
    assert words in refusal(**changes)
