"""`LLMBatchOperator` of the provider common-ai with Gemini, in Dags that run in this process."""

from __future__ import annotations

import json
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from airflow.providers.common.ai.batch import dispatch
from airflow.providers.common.ai.batch.output_schema import build_output_spec
from airflow.providers.common.ai.exceptions import (
    BatchProviderNotYetSupportedError,
    LLMBatchInputError,
    LLMBatchLimitExceededError,
    LLMBatchModelMismatchError,
)
from airflow.providers.common.ai.operators import llm_batch
from airflow.providers.common.ai.operators.llm_batch import LLMBatchOperator
from airflow.sdk import DAG
from llmbeam_sandbox import Fault
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from pydantic import BaseModel

from airflow_provider_llmbeam.integrations.common_ai import GoogleBatchAdapter
from airflow_provider_llmbeam.providers.errors import ApiNotFoundError, UncertainSubmitError

pytestmark = pytest.mark.slow

ROWS = 40
CREATE = "gemini.batches.create"
PROMPTS = [f"Say text {number}" for number in range(ROWS)]


class Answer(BaseModel):
    answer: str


@pytest.fixture
def operator(tmp_path, connection, monkeypatch):
    """Makes a task; it polls every 0.1 s, which the operator would refuse."""
    monkeypatch.setattr(llm_batch, "_MIN_POLL_INTERVAL", 0)

    def make(**changes):
        arguments = {
            "task_id": "answer",
            "requests": PROMPTS,
            "result_path": f"file://{tmp_path}/results",
            "llm_conn_id": "llmbeam_default",
            "model_id": "google:gemini-2.5-flash",
            "poll_interval": 0.1,
        }
        return LLMBatchOperator(**arguments | changes)

    return make


@pytest.fixture
def adapter(sandbox):
    adapter = GoogleBatchAdapter(api_key="k", base_url=sandbox.gemini_url)
    yield adapter
    adapter.close()


def manifest_of(run):
    return run.get_task_instance("answer").xcom_pull(task_ids="answer")


def rows_of(manifest):
    rows = map(json.loads, Path(manifest["result_uri"].removeprefix("file://")).read_text().splitlines())
    return sorted(rows, key=lambda row: row["index"])


def creates(sandbox):
    return [each for each in sandbox.requests if each.method == CREATE]


def arguments(prompts=PROMPTS, output_type=str, **changes):
    return {
        "requests": [prompt if isinstance(prompt, dict) else {"prompt": prompt} for prompt in prompts],
        "model": "gemini-2.5-flash",
        "idempotency_key": "0" * 16,
        "output_spec": build_output_spec(output_type),
        **changes,
    }


def test_the_adapter_is_found_by_its_entry_point():
    (found,) = entry_points(group=dispatch.ENTRY_POINT_GROUP, name="google")
    assert found.load() is GoogleBatchAdapter
    for conn_type in ("llmbeam", "pydanticai"):
        assert dispatch.get_adapter_class(conn_type, "google:gemini-2.5-flash") is GoogleBatchAdapter
    with pytest.raises(BatchProviderNotYetSupportedError):
        dispatch.get_adapter_class("pydanticai_vertex", "google:gemini-2.5-flash")


@pytest.mark.parametrize("deferrable", [False, True])
def test_every_request_has_its_own_answer(run_dag, operator, sandbox, deferrable):
    sandbox.batches.settings = BatchSettings(run_seconds=1.0)
    with DAG("llm_batch", schedule=None) as dag:
        operator(deferrable=deferrable, system_prompt="Be brief.", request_params={"temperature": 0.2})
    run, states = run_dag(dag)
    assert states == {"answer": "success"}
    manifest = manifest_of(run)
    assert manifest["counts"]["succeeded"] == ROWS
    rows = rows_of(manifest)
    assert [row["index"] for row in rows] == list(range(ROWS))
    assert all(PROMPTS[row["index"]] in row["output"] for row in rows)
    (charge,) = sandbox.token_bill.charges
    assert (charge.tier, charge.answers) == ("batch", ROWS)
    assert sum(row["usage"]["input_tokens"] for row in rows) == charge.input_tokens
    assert sum(row["usage"]["output_tokens"] for row in rows) == charge.output_tokens


@pytest.mark.full
def test_answers_have_the_schema_of_the_output_type(run_dag, operator):
    with DAG("llm_batch_schema", schedule=None) as dag:
        operator(output_type=Answer)
    run, states = run_dag(dag)
    assert states == {"answer": "success"}
    assert all(isinstance(Answer.model_validate(row["output"]), Answer) for row in rows_of(manifest_of(run)))


def test_failed_and_missing_rows_are_counted_beside_the_answers(run_dag, operator, sandbox):
    sandbox.batches.settings = BatchSettings(fail_ratio=0.1, malformed_ratio=0.05, missing_ratio=0.05)
    with DAG("llm_batch_partial", schedule=None) as dag:
        operator()
    run, states = run_dag(dag)
    assert states == {"answer": "success"}
    manifest = manifest_of(run)
    assert {name: count for name, count in manifest["counts"].items() if count} == {
        "succeeded": 32,
        "errored": 4,
        "missing": 4,
    }
    failed = [row for row in rows_of(manifest) if row["status"] == "error"]
    assert all(row["error"]["message"] and row["error"]["provider_code"] for row in failed)


@pytest.mark.full
def test_a_batch_that_expires_is_not_a_success(run_dag, operator, sandbox):
    sandbox.batches.settings = BatchSettings(outcome="expired", run_seconds=0.5)
    with DAG("llm_batch_expired", schedule=None) as dag:
        operator(fail_on_partial_error=True)
    assert run_dag(dag)[1] == {"answer": "failed"}


def test_a_batch_whose_submit_was_not_answered_is_found_and_not_paid_twice(run_dag, operator, sandbox):
    """The reply to the submit is lost; the next try of the same run finds the batch by its display name."""
    sandbox.faults.queue(CREATE, Fault(kind="disconnect"))
    with DAG("llm_batch_retry", schedule=None) as dag:
        operator(retries=1, retry_delay=timedelta(0))
    run, states = run_dag(dag)
    assert states == {"answer": "success"}
    assert manifest_of(run)["counts"]["succeeded"] == ROWS
    assert len(creates(sandbox)) == 1
    assert sum(charge.answers for charge in sandbox.token_bill.charges) == ROWS


def test_a_batch_is_found_only_by_both_identifiers(adapter):
    name = adapter.submit(**arguments(), input_fingerprint="f" * 64).batch_id
    since = "2020-01-01T00:00:00+00:00"
    assert adapter.find_orphaned_batch("0" * 16, "f" * 64, since) == name
    assert adapter.find_orphaned_batch("0" * 16, "e" * 64, since) is None
    assert adapter.find_orphaned_batch("1" * 16, "f" * 64, since) is None
    assert adapter.find_orphaned_batch("0" * 16, "f" * 64, "2999-01-01T00:00:00+00:00") is None


def test_a_submit_without_a_reply_is_an_error_and_not_sent_again(adapter, sandbox):
    sandbox.faults.queue(CREATE, Fault(kind="disconnect"))
    with pytest.raises(UncertainSubmitError):
        adapter.submit(**arguments(), input_fingerprint="f" * 64)
    assert len(creates(sandbox)) == 1


def test_a_cancelled_batch_says_so(adapter, sandbox):
    sandbox.batches.settings = BatchSettings(run_seconds=3600.0)
    name = adapter.submit(**arguments(), input_fingerprint="f" * 64).batch_id
    assert adapter.get_batch(name).status == "in_progress"
    adapter.cancel_batch(name)
    assert adapter.get_batch(name).status == "cancelled"
    assert list(adapter.iter_results(name)) == []


def test_a_missing_batch_has_the_status_that_common_ai_knows(adapter):
    with pytest.raises(ApiNotFoundError) as caught:
        adapter.get_batch("batches/none")
    assert LLMBatchOperator._is_not_found_error(caught.value)
    with pytest.raises(ApiNotFoundError):
        adapter.iter_results("batches/none")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"request_params": {"n": 2}}, LLMBatchInputError, "unknown 'n'"),
        ({"request_params": {"temperature": 3}}, LLMBatchInputError, "temperature"),
        ({"request_params": {"seed": 2**31}}, LLMBatchInputError, "`seed` must be from -2147483648 to 2147483647"),
        ({"prompts": [{"prompt": "p", "model": "google:other"}]}, LLMBatchInputError, "'other'"),
        ({"prompts": [{"prompt": "p", "model": "openai:gpt-5"}]}, LLMBatchModelMismatchError, "openai"),
        ({"prompts": ["p"] * (GoogleBatchAdapter.max_requests + 1)}, LLMBatchLimitExceededError, "50,001"),
        ({"prompts": ["p" * 1_000_000] * 101}, LLMBatchLimitExceededError, "100,000,000 bytes"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is_sent(adapter, sandbox, changes, error, message):
    with pytest.raises(error, match=message):
        adapter.validate_requests(**arguments(**changes))
    assert len(sandbox.requests) == 0


def test_a_request_has_its_own_parameters(adapter, sandbox):
    prompts = [{"prompt": "short", "max_tokens": 1}, {"prompt": "long", "system_prompt": "Be brief."}]
    name = adapter.submit(**arguments(prompts), input_fingerprint="f" * 64).batch_id
    short, long = sorted(adapter.iter_results(name), key=lambda item: item.index)
    assert (short.finish_reason, short.usage["output_tokens"]) == ("max_tokens", 1)
    assert long.finish_reason == "stop"
