"""Tasks that Airflow resumes after it has given up waiting for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.triggers.airflow_compat import TaskDeferralTimeout

TASK = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1)


@pytest.fixture
def flink_task(sandbox: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that makes a task whose job runs on the Flink cluster of the sandbox."""
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.cancellation.DRAIN_SECONDS", 0.0)

    def make(**arguments: Any) -> RunInferenceOperator:
        return RunInferenceOperator(
            task_id="t",
            source={"uri": f"{tmp_path}/in.jsonl", "key": "id"},
            prompt="{{ row.text }}",
            model="echo",
            state_uri=f"{tmp_path}/state",
            job_name="nightly",
            runner={
                "type": "flink",
                "rest_url": sandbox.flink_url,
                "job_endpoint": "127.0.0.1:9",
                "flink_version": "1.19",
                "environment": {"type": "PROCESS", "command": "/boot"},
            },
            **arguments,
        )

    return make


@pytest.mark.parametrize(
    "changes",
    [
        {"llmbeam_conn_id": "not_there"},
        {"sink": {"type": "kafka", "topic": "labels", "conn_id": "not_there"}},
    ],
    ids=["connection of the model", "connection of the sink"],
)
def test_a_job_is_cancelled_though_a_connection_that_its_task_read_at_the_start_is_gone(
    changes: dict[str, Any], sandbox: Any, tmp_path: Any, flink_task: Any
) -> None:
    task = flink_task(**{"sink": f"{tmp_path}/out", **changes})
    context: Any = {"ti": TASK}
    job = sandbox.flink.jobs.add(f"{identity('nightly', 'tests')}-0badcafe")
    task.render_template_fields(context)
    with pytest.raises(JobSpecError, match="there is no connection 'not_there'"):
        task._job(context)
    with pytest.raises(TaskDeferralTimeout):
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert job.state == "CANCELED"


@pytest.mark.parametrize("field", ["model", "source", "limits"])
def test_a_job_is_cancelled_though_an_xcom_of_its_task_is_gone(
    field: str, sandbox: Any, tmp_path: Any, flink_task: Any
) -> None:
    task = flink_task(sink=f"{tmp_path}/out")
    setattr(task, field, {"uri": None})  # as Airflow renders a reference to a task that was cleared
    context: Any = {"ti": TASK}
    job = sandbox.flink.jobs.add(f"{identity('nightly', 'tests')}-0badcafe")
    with pytest.raises(TaskDeferralTimeout):
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    assert job.state == "CANCELED"


def test_a_job_whose_project_is_unknown_is_reported_and_the_timeout_is_raised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = RunInferenceOperator(
        task_id="t",
        source={"uri": "gs://b/in.jsonl", "key": "id"},
        prompt="{{ row.text }}",
        model="echo",
        sink="gs://b/out",
        runner={"type": "dataflow", "location": "europe-west1"},
        gcp_conn_id="not_there",
    )
    context: Any = {"ti": TASK}
    with pytest.raises(TaskDeferralTimeout):
        task.resume_execution("__fail__", {"error": "Trigger timeout"}, context)
    log = capsys.readouterr().out
    assert "Its job was not cancelled, and may still be running and billing." in log
    assert "there is no connection 'not_there'" in log
