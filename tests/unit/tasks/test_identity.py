from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_llmbeam.tasks.identity import job_name, owner_of


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
