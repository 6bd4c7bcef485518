from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.runner import FlinkRunner, workers_have_keys, workers_of

FLINK = {
    "type": "flink",
    "rest_url": "http://jm:8081/",
    "job_endpoint": "js:8099",
    "flink_version": "1.19",
    "environment": {"type": "EXTERNAL", "address": "localhost:50000"},
}


def test_a_valid_runner_is_accepted() -> None:
    runner = FlinkRunner.parse({**FLINK, "task_managers": 3})
    assert runner.rest_url == "http://jm:8081"
    assert runner.parallel_instances == 3
    assert workers_of(runner, Limits()) == 3
    assert workers_have_keys(runner)
    assert FlinkRunner.parse({**FLINK, "parallelism": 6}).parallel_instances == 6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rest_url": "jm:8081"}, "must be the address of a REST API, e.g. 'http://flink-jobmanager:8081'"),
        ({"rest_url": "http://user:secret@jm:8081"}, "must be the address of a REST API"),
        (
            {"environment": {"type": "LOOPBACK"}},
            "must be 'EXTERNAL', 'PROCESS' or 'DOCKER': the process that submits",
        ),
        (
            {"task_managers": 2, "environment": {"type": "EXTERNAL", "address": "pool:50000"}},
            "must be on localhost with several task managers",
        ),
        ({"job_endpoint": None}, "`job_endpoint`: this field, or `job_server_jar`, is needed"),
        ({"job_server_jar": "/opt/js.jar"}, "`job_server_jar`: must be left out with `job_endpoint`"),
        ({"flink_version": "1.18"}, "'1.19', '1.20', '2.0', '2.1' or '2.2'"),
        ({"options": {"parallelism": 3}}, "has 'parallelism', which another field of `runner` sets already"),
    ],
)
def test_values_that_cannot_work_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(JobSpecError) as caught:
        FlinkRunner.parse({**FLINK, **changes})
    assert words in str(caught.value)


def test_one_task_manager_may_use_a_pool_elsewhere() -> None:
    FlinkRunner.parse({**FLINK, "environment": {"type": "EXTERNAL", "address": "pool:50000"}})
