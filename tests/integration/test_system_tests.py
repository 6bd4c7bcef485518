"""The system tests of `tests/system`: that each is complete, and one on the emulated cloud."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from llmbeam_sandbox import Fault, Proxy, Sandbox

HERE = Path(__file__).resolve().parents[1] / "system"
NAMES = sorted(path.stem for path in HERE.glob("example_*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_system_test_tears_down_in_every_case_and_fails_with_each_of_its_tasks(name, dag_bags):
    bag = dag_bags.DagBag(str(HERE / f"{name}.py"))
    assert not bag.import_errors
    ((dag_id, dag),) = bag.dags.items()
    assert f"example_{dag_id}" == name
    tasks = dag.task_dict
    assert (tasks["watcher"].trigger_rule, tasks["watcher"].retries) == ("one_failed", 0)
    assert tasks["watcher"].upstream_task_ids == {task.task_id for task in tasks.values() if not task.is_setup} - {
        "watcher"
    }
    assert tasks["delete_rows"].trigger_rule == "all_done"
    assert tasks.keys() - {"watcher", "delete_rows"} <= tasks["delete_rows"].get_flat_relative_ids(upstream=True)
    assert [root.task_id for root in dag.roots] == ["write_rows"]


@pytest.mark.parametrize("name", NAMES)
def test_a_system_test_says_what_it_costs_and_takes(name):
    test = importlib.import_module(f"tests.system.{name}").test
    assert test.usd > 0
    assert test.minutes > 0


def test_the_tests_of_this_machine_collect_no_system_test(pytestconfig):
    assert NAMES
    patterns = pytestconfig.getini("python_files")
    assert not any(path.match(pattern) for pattern in patterns for path in HERE.iterdir())


@pytest.fixture
def cloud(tmp_path, airflow_database):
    with Sandbox(buckets=("rows",)) as sandbox, Proxy(sandbox) as proxy:
        environment = {
            **os.environ,
            **proxy.environment(),
            "AIRFLOW_HOME": str(tmp_path),
            "LLMBEAM_BUCKET": "rows",
            "LLMBEAM_PROJECT": "llmbeam-sandbox",
            "GOOGLE_API_KEY": "k",
        }
        yield sandbox, environment


def run_system_test(environment, *arguments):
    command = [sys.executable, "-m", "tests.system", *arguments]
    return subprocess.run(
        command, cwd=HERE.parents[1], env=environment, check=False, capture_output=True, text=True
    )


def objects_of(sandbox):
    return httpx.get(f"{sandbox.authorized_url}/storage/v1/b/rows/o").raise_for_status().json().get("items", [])


@pytest.mark.full
def test_a_system_test_runs_only_for_an_allowed_cost_and_leaves_nothing(cloud):
    sandbox, environment = cloud
    refused = run_system_test(environment, "classify_csv", "--spend", "0.001")
    assert refused.returncode == 2
    assert refused.stdout.startswith("classify_csv: at most $0.01 and 5 minutes. Needs `GOOGLE_API_KEY`")
    assert sandbox.requests.paid().total() == 0
    ended = run_system_test(environment, "classify_csv", "--spend", "0.01")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sandbox.requests.paid().total() == 2
    assert objects_of(sandbox) == []


@pytest.mark.full
@pytest.mark.parametrize("name", ["reviews_on_dataflow", "gemma_gpu_backfill"])
def test_a_system_test_in_the_cloud_leaves_nothing_that_is_billed(cloud, name):
    sandbox, environment = cloud
    ended = run_system_test(environment, name, "--spend", "3")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(sandbox.requests.paid()) >= 10
    assert (objects_of(sandbox), sandbox.bill.running) == ([], [])


@pytest.mark.full
def test_a_system_test_of_a_job_that_fails_fails_and_leaves_nothing(cloud):
    sandbox, environment = cloud
    sandbox.faults.queue("gemini.generateContent", *[Fault(kind="error", http_status=400, message="no")] * 9)
    ended = run_system_test(environment, "classify_csv", "--spend", "1")
    assert ended.returncode != 0
    assert objects_of(sandbox) == []
