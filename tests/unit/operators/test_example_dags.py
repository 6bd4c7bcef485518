"""What authors change in the Dags of `dags/`: the time zone, and the project."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from airflow.sdk import DAG

from airflow_provider_llmbeam import DAY

DAGS = Path(__file__).resolve().parents[3] / "dags"


def scope_of(name, *changes):
    """Returns the global names of a Dag file with changes, its Dag as `dag`."""
    text = (DAGS / f"{name}.py").read_text().replace("\n):\n", "\n) as dag:\n")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    scope = {"__name__": name, "__doc__": ""}
    exec(compile(text, name, "exec"), scope)
    return scope


def source_of(scope, task_id, logical_date):
    """Returns the address of the source of a task in a run."""
    dag = scope["dag"]
    run = SimpleNamespace(logical_date=logical_date.astimezone(UTC), run_after=None)
    uri = dag.get_task(task_id).source["uri"]
    return dag.get_template_env().from_string(uri).render(dag=dag, dag_run=run)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Tokyo"])
@pytest.mark.parametrize(
    ("name", "task_id"), [("backfill", "judge"), ("conversations", "reply"), ("reviews_on_dataflow", "judge")]
)
def test_a_night_in_another_zone_reads_the_file_of_its_day(name, task_id, zone):
    scope = scope_of(name, ('ZONE = "UTC"', f'ZONE = "{zone}"'))
    assert scope["dag"].timetable.serialize()["timezone"] == zone
    midnight = datetime(2026, 10, 25, tzinfo=ZoneInfo(zone))  # the clock changes in Europe
    assert source_of(scope, task_id, midnight).endswith("/2026-10-25.jsonl")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Tokyo"])
@pytest.mark.parametrize(
    ("name", "task_id", "file"),
    [
        ("half_price_night", "judge", "2026-10-25.jsonl"),
        ("nightly_enrichment", "enrich", "2026-10-25/readmes.jsonl"),
    ],
)
def test_a_schedule_in_the_zone_of_the_start_date_reads_the_file_of_its_day(name, task_id, file, zone):
    start = f'datetime(2026, 1, 1, tzinfo=__import__("zoneinfo").ZoneInfo("{zone}"))'
    scope = scope_of(name, ("datetime(2026, 1, 1)", start))
    evening = datetime(2026, 10, 25, 22, tzinfo=ZoneInfo(zone))
    assert source_of(scope, task_id, evening).endswith(f"/{file}")


@pytest.mark.parametrize(
    ("logical_date", "day"), [(None, "2026-11-06"), (datetime(2026, 11, 3, 23, 15, tzinfo=UTC), "2026-11-04")]
)
def test_the_day_of_a_run_is_in_the_zone_of_its_dag_also_without_a_logical_date(logical_date, day):
    dag = DAG("day", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")))
    run = SimpleNamespace(logical_date=logical_date, run_after=datetime(2026, 11, 5, 23, 15, tzinfo=UTC))
    assert dag.get_template_env().from_string(DAY).render(dag=dag, dag_run=run) == day


@pytest.mark.parametrize("name", sorted(path.stem for path in DAGS.glob("*.py")))
def test_the_guide_of_a_dag_begins_with_a_short_title(name):
    title, colon, _ = (DAGS / f"{name}.py").read_text().split('"""')[1].partition(":")
    assert colon
    assert len(title) <= 60
    assert "\n" not in title


@pytest.mark.parametrize("name", ["quota_gate", "registered_model", "reviews_on_dataflow", "translate_columns"])
def test_the_project_of_a_dag_is_that_of_its_variable(name, monkeypatch):
    monkeypatch.setenv("LLMBEAM_PROJECT", "our-project")
    assert scope_of(name)["PROJECT"] == "our-project"
