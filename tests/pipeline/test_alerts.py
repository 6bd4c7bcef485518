"""The alerts of whole jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_llmbeam.exceptions import BudgetExceededError, DriftError, JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.protocol.alert import Alert

PRICE = {"input_usd_per_million_tokens": 1000.0, "output_usd_per_million_tokens": 0.0}


@pytest.fixture
def alerts_of(tmp_path):
    """Runs a job; returns the kinds of its alerts, or those before its error."""

    def alerts(job, error=None, **changes):
        path = tmp_path / "alerts.jsonl"
        path.unlink(missing_ok=True)
        spec = JobSpec.parse(job.spec | changes)
        if error is None:
            run(spec, alerts_path=path)
        else:
            with pytest.raises(error):
                run(spec, alerts_path=path)
        return [Alert.from_json(line).key for line in path.read_text().splitlines()] if path.exists() else []

    return alerts


def rows(count, text):
    return [{"id": number, "text": f"{text} {number}"} for number in range(count)]


def night(job, number, **changes):
    """Changes of the spec for one night of a task."""
    state = {"owner": "dag.task", "state_uri": str(job.directory / "state")}
    return {"name": f"night-{number}", "sink": {"uri": f"{job.out}-{number}"}, **state, **changes}


def test_the_end_of_a_run_raises_alerts_of_its_budget_and_its_failed_rows(echo_job, alerts_of):
    echo_job.write([*rows(9, "a"), {"id": 9}])
    limits = {"price": PRICE, "budget_usd": 10.0, "max_dead_letter_ratio": 0.5}
    assert alerts_of(echo_job, limits=limits) == [], "a cheap run, and no ratio of failed rows by default"
    rules = {"failed_row_ratio": 0.05, "budget_ratios": [1e-6]}
    found = alerts_of(echo_job, limits=limits, alerts=rules, prompt={"template": "{{ row.text }}"})
    assert found == ["budget 1e-06", "failed_rows"]


def test_a_run_that_exceeds_its_budget_has_raised_the_alert_once_over_its_tries(job, alerts_of):
    job.write(rows(50, "a text of some length"))
    limits = {"price": PRICE, "budget_usd": 0.01}
    assert alerts_of(job, BudgetExceededError, limits=limits) == ["budget 1"]
    assert alerts_of(job, BudgetExceededError, limits=limits) == []


def test_answers_that_have_drifted_are_not_published_and_are_kept(job, sandbox, alerts_of):
    job.write(rows(200, "short"))
    assert alerts_of(job, **night(job, 1)) == []
    job.write(rows(200, "a much longer text " * 20))
    fails = night(job, 2, alerts={"on_drift": "fail"}, prompt={"template": "Repeat: {{ row.text }}"})
    changed = {"type": "echo"}
    assert alerts_of(job, DriftError, **fails, model=changed) == ["model_version", "drift"]
    assert not Path(f"{job.out}-2", "answers-00000-of-00001.jsonl").exists()
    failed = Path(JobSpec.parse(job.spec | fails).paths.failed_html_uri).read_text()
    assert "Failed, and published no answers" in failed
    assert "PSI" in failed
    paid = len(sandbox.requests)
    assert alerts_of(job, **(fails | {"alerts": {"on_drift": "warn"}}), model=changed) == []
    assert Path(f"{job.out}-2", "answers-00000-of-00001.jsonl").exists()
    assert len(sandbox.requests) == paid


def test_a_new_version_of_the_model_and_drift_are_warnings_by_default(echo_job, alerts_of, caplog):
    echo_job.write(rows(200, "short"))
    alerts_of(echo_job, **night(echo_job, 1))
    echo_job.write(rows(200, "a much longer text " * 20))
    assert alerts_of(echo_job, **night(echo_job, 2)) == ["drift"]
    assert "Alert: The lengths of the answers differ from those of the last run" in caplog.text


def test_answers_that_cannot_be_compared_with_earlier_ones_are_not_published_where_drift_fails(
    job, sandbox, alerts_of, monkeypatch
):
    """Bad answers were published, as if the task had had no run before."""
    job.write(rows(200, "short"))
    alerts_of(job, **night(job, 1))
    job.write(rows(200, "a much longer text " * 20))
    fails = night(job, 2, alerts={"on_drift": "fail"})
    read = storage.read

    def refuse(uri):
        if "/history/" in uri:
            raise OSError("503 Service Unavailable")
        return read(uri)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "read", refuse)
        alerts_of(job, JobFailedError, **fails)
    assert not Path(f"{job.out}-2", "answers-00000-of-00001.jsonl").exists()
    paid = len(sandbox.requests)
    assert alerts_of(job, DriftError, **fails) == ["drift"]
    assert len(sandbox.requests) == paid
