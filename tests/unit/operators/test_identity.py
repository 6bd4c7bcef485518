from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_llmbeam.operators.identity import airflow_run_of, budget_name, job_name, owner_of
from airflow_provider_llmbeam.spec.job import JobSpec

SPEC = {
    "source": {"uri": "/tmp/rows.jsonl", "key": "id"},
    "prompt": {"template": "{{ row.id }}"},
    "model": {"type": "echo"},
    "sink": {"uri": "/tmp/out"},
    "state_uri": "gs://shared/state",
}


def task(**changes):
    return SimpleNamespace(**{"dag_id": "etl", "task_id": "judge", "run_id": "r1", "map_index": -1, **changes})


@pytest.mark.parametrize(
    ("index", "owner"), [(-1, "etl.judge"), (None, "etl.judge"), (0, "etl.judge[0]"), (3, "etl.judge[3]")]
)
def test_the_owner_is_dag_task_and_map_index(index, owner):
    assert owner_of(task(map_index=index)) == owner


def test_the_owner_is_the_same_in_every_run_and_the_name_is_not():
    first, second = task(run_id="r1", map_index=1), task(run_id="r2", map_index=1)
    assert owner_of(first) == owner_of(second)
    assert job_name(first) != job_name(second)


def test_a_run_knows_the_name_that_its_job_has_before_the_run_exists():
    day = datetime(2026, 11, 3, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    planned = task(run_id="manual__2026-11-03T00:00:00+00:00")
    for run_id in ("scheduled__2026-11-03T00:00:00+00:00", "backfill__2026-11-03T00:00:00+00:00", planned.run_id):
        found = airflow_run_of(task(run_id=run_id), job_name(task(run_id=run_id)), day)
        assert (found["names_job"], found["planned_job"]) == (True, job_name(planned))
    assert airflow_run_of(task(), job_name(task()), None)["planned_job"] == ""
    assert "names_job" not in airflow_run_of(task(), "moods", day), "of `job_name`"


def test_two_airflows_with_the_same_dag_have_other_jobs_and_journals_below_one_state_uri(monkeypatch):
    def of(deployment):
        monkeypatch.setenv("AIRFLOW__LLMBEAM__DEPLOYMENT", deployment)
        spec = JobSpec.parse({**SPEC, "name": job_name(task())})
        return spec.name, spec.paths.journal_uri, spec.paths.staging_uri

    assert all(a != b for a, b in zip(of("development"), of("production"), strict=True))
    assert of("production") == of("production")


def run(run_type="scheduled", start_date=datetime(2026, 10, 31, 23, 30, tzinfo=UTC)):
    return SimpleNamespace(run_type=run_type, start_date=start_date)


def test_a_month_begins_in_the_zone_of_the_dag():
    in_utc = budget_name("month", task(), run(), UTC)
    in_berlin = budget_name("month", task(), run(), ZoneInfo("Europe/Berlin"))
    assert in_utc.endswith("-2026-10")
    assert in_berlin == in_utc.replace("-2026-10", "-2026-11")
    assert budget_name("month", task(run_id="r2", task_id="other"), run(), UTC) == in_utc, "of the whole Dag"
    assert budget_name("month", task(dag_id="another"), run(), UTC) != in_utc


def test_a_backfill_has_a_budget_that_other_runs_of_its_dag_have_no_part_in():
    assert budget_name("backfill", task(), run(), UTC) is None
    assert budget_name("backfill", task(), run("backfill"), UTC).startswith("backfill-etl")
    assert budget_name("dag", task(), run(), UTC) == budget_name("dag", task(), run("backfill"), UTC)
    assert budget_name("dag", task(), run(), UTC) != budget_name("backfill", task(), run("backfill"), UTC)


def test_any_other_word_is_the_name_of_a_budget_of_several_dags():
    assert budget_name("team-2026", task(), run(), UTC) == budget_name("team-2026", task(dag_id="b"), run(), UTC)


@pytest.mark.parametrize("over", ["month", "dag", "backfill"])
def test_the_name_of_a_budget_is_one_that_a_spec_takes(over):
    name = budget_name(over, task(dag_id="ä" * 250), run("backfill"), UTC)
    spec = JobSpec.parse({**SPEC, "name": "n", "limits": {"budget": {"usd": 1, "over": name}}})
    assert spec.paths.budget_uri == f"gs://shared/state/budgets/{name}.json"
