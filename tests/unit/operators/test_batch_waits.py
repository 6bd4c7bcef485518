"""The waits of `RunInferenceOperator` for batch inference, without its process: `dag.test` keeps no time limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider_llmbeam.operators import run_inference
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

MINUTE = timedelta(minutes=1)


class WaitingProcess:
    """The process of a job whose batch-inference jobs go on for five more minutes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def run(self, *, defers: bool) -> dict[str, Any]:
        assert defers
        return {"batch": {"wait_seconds": 300.0}}


@pytest.mark.parametrize(
    ("limit", "left"),
    [(12 * MINUTE, [12 * MINUTE, 7 * MINUTE, 2 * MINUTE, 0 * MINUTE]), (None, [None] * 4)],
)
def test_the_time_limit_of_a_deferred_task_counts_all_its_waits_and_begins_anew_with_a_retry(
    limit: timedelta | None, left: list[timedelta | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 11, 24, tzinfo=UTC).timestamp()
    monkeypatch.setattr(run_inference, "JobProcess", WaitingProcess)
    monkeypatch.setattr(run_inference, "time", SimpleNamespace(time=lambda: now))
    arguments = {"source": {"uri": "/in.jsonl", "key": "id"}, "prompt": "Say {{ row.text }}", "sink": "/out"}
    ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, xcom_push=lambda **_: None)
    context: Any = {"ti": ti}
    for _ in range(2):
        found, resumed = [], {}
        for _ in left:
            task = RunInferenceOperator(
                task_id="t",
                model="gemini-2.5-flash",
                inference={"mode": "batch"},
                execution_timeout=limit,
                **arguments,
            )
            with pytest.raises(TaskDeferred) as caught:
                task.continue_batch(context, {}, **resumed) if resumed else task.execute(context)
            found.append(caught.value.timeout)
            resumed = caught.value.kwargs
            now = caught.value.trigger.until
        assert found == left
