from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.pipeline.launch.flink import cluster_fault, cluster_warning
from airflow_provider_llmbeam.spec.runner import FlinkRunner

OVERVIEW = {"flink-version": "1.19.3", "taskmanagers": 2, "slots-available": 2}
RESTARTS = {"restart-strategy.type": "fixed-delay"}


def runner(**changes: Any) -> FlinkRunner:
    given = {"type": "flink", "rest_url": "http://jm:8081", "job_endpoint": "js:8099", "flink_version": "1.19"}
    environment = {"type": "PROCESS", "command": "/boot"}
    return FlinkRunner.parse({**given, "task_managers": 2, "environment": environment, **changes})


def jar(name: str) -> FlinkRunner:
    return runner(job_endpoint=None, job_server_jar=f"/opt/{name}")


def test_a_cluster_of_the_version_with_a_restart_strategy_is_accepted() -> None:
    assert cluster_fault(runner(), OVERVIEW, RESTARTS, "2.77.0") is None
    assert cluster_fault(runner(), OVERVIEW, {"restart-strategy": "exponential-delay"}, "2.77.0") is None
    assert cluster_warning(runner(), OVERVIEW) is None


@pytest.mark.parametrize("version", ["1.20.0", "1.190.1", ""])
def test_a_cluster_of_another_version_is_refused(version: str) -> None:
    fault = cluster_fault(runner(), {**OVERVIEW, "flink-version": version}, RESTARTS, "2.77.0")
    assert fault is not None
    assert fault.startswith(
        f"`runner.flink_version`: the cluster at http://jm:8081 has Flink {version!r}; got '1.19'"
    )


@pytest.mark.parametrize("configuration", [{}, {"restart-strategy.type": "none"}, {"restart-strategy": "OFF"}])
def test_a_cluster_without_a_restart_strategy_is_refused(configuration: dict[str, str]) -> None:
    fault = cluster_fault(runner(), OVERVIEW, configuration, "2.77.0")
    assert fault is not None
    assert "has no restart strategy" in fault


@pytest.mark.parametrize(
    ("name", "is_accepted"),
    [
        ("beam-runners-flink-1.19-job-server-2.77.0.jar", True),
        ("our-own.jar", True),
        ("beam-runners-flink-1.20-job-server-2.77.0.jar", False),
        ("beam-runners-flink-1.19-job-server-2.70.0.jar", False),
    ],
)
def test_a_job_server_of_another_version_is_refused(name: str, is_accepted: bool) -> None:
    fault = cluster_fault(jar(name), OVERVIEW, RESTARTS, "2.77.0")
    assert (fault is None) == is_accepted
    assert is_accepted or "'beam-runners-flink-1.19-job-server-2.77.0.jar'" in str(fault)


def test_more_task_managers_and_too_few_slots_are_a_warning() -> None:
    assert "`runner.task_managers` is 2" in str(cluster_warning(runner(), {**OVERVIEW, "taskmanagers": 3}))
    assert "has 2 free slots, and the job needs 4" in str(cluster_warning(runner(parallelism=4), OVERVIEW))
