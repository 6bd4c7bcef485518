from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_llmbeam.operators.identity import job_name, owner_of
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


def test_two_airflows_with_the_same_dag_have_other_jobs_and_journals_below_one_state_uri(monkeypatch):
    def of(deployment):
        monkeypatch.setenv("AIRFLOW__LLMBEAM__DEPLOYMENT", deployment)
        spec = JobSpec.parse({**SPEC, "name": job_name(task())})
        return spec.name, spec.paths.journal_uri, spec.paths.staging_uri

    assert all(a != b for a, b in zip(of("development"), of("production"), strict=True))
    assert of("production") == of("production")
