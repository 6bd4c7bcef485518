"""`EstimateInferenceOperator`, and the Dag that gates a job by it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.triggers.base import PollingTrigger
from tests.integration.cases import shown_page

GATE = Path(__file__).resolve().parents[2] / "dags" / "quota_gate.py"
GENERATE = "gemini.generateContent"
ROWS = 60


@pytest.fixture
def job(tmp_path):
    rows = [{"id": number, "text": f"row number {number}"} for number in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "source": {"uri": f"{tmp_path}/rows.jsonl", "key": ["id"]},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {"type": "gemini"},
        "limits": {"requests_per_minute": 6000},
        "sink": {"uri": f"{tmp_path}/out"},
    }


def test_the_job_reuses_the_answers_of_its_estimate_and_reports_its_accuracy(run_dag, connection, sandbox, job):
    with DAG("estimated", schedule=None) as dag:
        estimate = EstimateInferenceOperator(task_id="estimate", job_task_id="judge", sample_size=20, **job)
        estimate >> RunInferenceOperator(task_id="judge", **job)
    dag_run, states = run_dag(dag)
    assert states == {"estimate": "success", "judge": "success"}
    found = dag_run.get_task_instance("estimate").xcom_pull(task_ids="estimate")
    demand = dag_run.get_task_instance("estimate").xcom_pull(task_ids="estimate", key="demand")
    assert (found["rows"], found["requests"], demand["rows"]) == (ROWS, 40, 40)
    assert found["cost_usd"] > 0
    assert f"<b>{ROWS}</b>" in shown_page(dag_run, "estimate")
    manifest = dag_run.get_task_instance("judge").xcom_pull(task_ids="judge")
    assert (manifest["origins"]["fresh"], manifest["origins"]["resumed"]) == (40, 20)
    assert manifest["estimate"]["input_tokens"]["ratio"] == pytest.approx(1, abs=0.05)
    assert set(sandbox.requests.paid().values()) == {1}


def test_the_id_of_a_job_without_its_task_group_is_refused_before_a_sample_is_paid_for(
    run_dag, connection, sandbox, job
):
    errors = []
    with DAG("grouped", schedule=None) as dag, TaskGroup("night"):
        estimate = EstimateInferenceOperator(
            task_id="estimate",
            job_task_id="judge",
            on_failure_callback=lambda context: errors.append(str(context["exception"])),
            **job,
        )
        estimate >> RunInferenceOperator(task_id="judge", **job)
    _, states = run_dag(dag)
    assert states == {"night.estimate": "failed", "night.judge": "upstream_failed"}
    (error,) = errors
    assert error.startswith("`job_task_id`: Dag 'grouped' has no task 'judge'; did you mean `night.judge`?")
    assert len(sandbox.requests) == 0


@pytest.mark.parametrize("sample_size", [0, 20])
def test_a_job_over_budget_is_stopped_by_its_estimate_as_the_dag_says(
    run_dag, connection, sandbox, job, tmp_path, sample_size
):
    errors, job["limits"] = {}, {"budget_usd": 1e-6}
    with DAG("over_budget", schedule=None) as dag:
        for policy in ("fail", "skip", "report"):
            estimate = EstimateInferenceOperator(
                task_id=policy,
                sample_size=sample_size,
                on_exceeds_budget=f"{{{{ '{policy}' }}}}",
                retries=2,
                on_failure_callback=lambda context: errors.update({context["ti"].task_id: context["exception"]}),
                **job,
            )
            estimate >> EmptyOperator(task_id=f"after_{policy}")
    dag_run, states = run_dag(dag)
    assert {task: states[task] for task in ("fail", "after_fail", "skip", "after_skip")} == {
        "fail": "failed",
        "after_fail": "upstream_failed",
        "skip": "skipped",
        "after_skip": "skipped",
    }
    assert dag_run.get_task_instance("fail").try_number == 1
    if sample_size:  # the first prompts of the sample are over the budget
        assert "`limits.budget_usd`" in str(errors["fail"])
        return
    assert states["report"] == states["after_report"] == "success"
    assert re.match(
        r"The job would cost at most \$0\.\d+, and `limits\.budget_usd` is \$0\.000001\.", str(errors["fail"])
    )
    found = [dag_run.get_task_instance(each).xcom_pull(task_ids=each) for each in ("fail", "skip", "report")]
    assert [each["exceeds_budget"] for each in found] == [True] * 3
    assert len(sandbox.requests) == 0


def test_a_source_without_files_fails_without_a_retry(run_dag, connection, sandbox, job):
    with DAG("empty", schedule=None) as dag:
        job["source"]["uri"] = "/no/*.jsonl"
        EstimateInferenceOperator(task_id="estimate", retries=3, **job)
    dag_run, states = run_dag(dag)
    assert states == {"estimate": "failed"}
    assert dag_run.get_task_instance("estimate").try_number == 1
    assert len(sandbox.requests) == 0


def test_invalid_literal_values_are_refused_when_the_dag_is_parsed(job):
    with pytest.raises(JobSpecError, match=r"`sample_size` must be 0 or more; got -1"):
        EstimateInferenceOperator(task_id="estimate", sample_size=-1, **job)
    with pytest.raises(JobSpecError, match=r"`on_exceeds_budget` must be 'fail', 'skip' or 'report'; got 'stop'"):
        EstimateInferenceOperator(task_id="estimate", on_exceeds_budget="stop", **job)
    with pytest.raises(JobSpecError, match=r"`on_exceeds_budget` 'skip' needs a budget"):
        EstimateInferenceOperator(task_id="estimate", on_exceeds_budget="skip", **job)
    stated = job | {"state_uri": "state"}
    for limits in ({"budget_usd": 1}, {"budget": {"usd": 9, "over": "month"}}, {"budget_usd": "{{ params.usd }}"}):
        EstimateInferenceOperator(task_id="estimate", on_exceeds_budget="skip", **stated | {"limits": limits})
    with pytest.raises(JobSpecError, match=r"Task 'estimate': `source\.key`"):
        EstimateInferenceOperator(task_id="estimate", **job | {"source": {"uri": "a.csv"}})


@pytest.fixture
def gate(google, monkeypatch, tmp_path):
    """The unmodified Dag `quota_gate`, with the reviews of this test."""
    monkeypatch.setenv("LLMBEAM_DATA", str(tmp_path))
    monkeypatch.setattr(PollingTrigger, "first_poll_delay_seconds", 0.1)
    (tmp_path / "reviews").mkdir()
    rows = [{"review_id": number, "text": f"review {number}"} for number in range(ROWS)]
    (tmp_path / "reviews" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = importlib.util.spec_from_file_location("quota_gate", GATE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dag


def test_with_headroom_at_night_the_job_runs_at_the_recommended_rate(run_dag, gate, sandbox, tmp_path):
    for location in ("global", "us-central1"):
        used = 240 if location == "global" else 60
        sandbox.monitoring.add_traffic(
            "gemini-3.5-flash-lite", location=location, minutes=30, requests_per_minute=used
        )
    _, states = run_dag(gate)
    assert states == {
        "estimate": "success",
        "night_gate": "success",
        "day": "skipped",
        "day_gate": "skipped",
        "judge": "success",
    }
    spec = json.loads((tmp_path / "moods" / "gated" / "report.json").read_text())["spec"]
    assert spec["limits"]["requests_per_minute"] == 0.95 * 540
    assert spec["limits"]["budget_usd"] == 20
    assert spec["model"]["location"] == "us-central1"
    assert set(sandbox.requests.paid().values()) - {1} <= {16}, (
        "only the probes, which are all alike, are asked again"
    )


@pytest.mark.full
def test_without_headroom_at_night_the_job_runs_by_day(run_dag, gate, sandbox, tmp_path):
    gate.get_task("night_gate").timeout = 1.0
    gate.get_task("night_gate").poke_interval = gate.get_task("day_gate").poke_interval = 1.0
    gate.get_task("day").target_time = "2026-01-01T00:00:00+00:00"
    rejected = Fault(kind="rate-limit")
    sandbox.faults.when(GENERATE, "OK", rejected, 12)  # three requests, two locations, two polls
    _, states = run_dag(gate)
    assert states == {
        "estimate": "success",
        "night_gate": "skipped",
        "day": "success",
        "day_gate": "success",
        "judge": "success",
    }
    report = json.loads((tmp_path / "moods" / "gated" / "report.json").read_text())
    assert report["rows"]["answered"] == ROWS
