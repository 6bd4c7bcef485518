from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.runner import (
    PortableRunner,
    WorkerEnvironment,
    limits_of_a_worker,
    workers_have_keys,
    workers_of,
)

POOL = {"type": "EXTERNAL", "address": "localhost:50000"}
PORTABLE = {"type": "portable", "job_endpoint": "localhost:8099", "environment": POOL}
JOB = {
    "name": "n",
    "source": {"uri": "/mnt/rows.jsonl", "key": ["id"]},
    "prompt": {"template": "{{ row.t }}"},
    "model": {"type": "echo"},
    "sink": {"uri": "/mnt/out"},
}


def test_a_disk_that_all_workers_mount_is_accepted_and_a_relative_path_is_not() -> None:
    assert JobSpec.parse({**JOB, "runner": PORTABLE}).paths.launch_uri == "/mnt/out/.llmbeam/n/launch"
    with pytest.raises(JobSpecError, match=r"`sink\.uri`: must be an address that all workers reach"):
        JobSpec.parse({**JOB, "sink": {"uri": "out"}, "runner": PORTABLE})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("job_endpoint", "http://localhost:8099/", "must be a host and a port, e.g. 'localhost:8099'"),
        ("environment", {"type": "EXTERNAL", "address": "localhost"}, "must be a host and a port"),
        ("environment", {"type": "EXTERN"}, "must be 'EXTERNAL', 'PROCESS', 'DOCKER' or 'LOOPBACK'"),
        (
            "environment",
            {"type": "PROCESS"},
            "`runner.environment.command`: this field is needed with type 'PROCESS'",
        ),
        ("environment", {"type": "LOOPBACK", "image": "i"}, "must be left out with type 'LOOPBACK'; got 'i'"),
        ("workers", 0, "greater than or equal to 1"),
        ("options", {"job_name": "x"}, "has 'job_name', which another field of `runner` sets already"),
    ],
)
def test_values_that_no_runner_takes_are_refused(field: str, value: object, words: str) -> None:
    with pytest.raises(JobSpecError) as caught:
        JobSpec.parse({**JOB, "runner": {**PORTABLE, field: value}})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "config"),
    [
        ({"type": "EXTERNAL", "address": "h:1"}, {"environment_config": "h:1"}),
        ({"type": "PROCESS", "command": "/boot"}, {"environment_config": '{"command": "/boot"}'}),
        ({"type": "DOCKER", "image": "i"}, {"environment_config": "i"}),
        ({"type": "LOOPBACK"}, {}),
    ],
)
def test_an_environment_becomes_options_of_beam(environment: dict[str, str], config: dict[str, str]) -> None:
    assert WorkerEnvironment.parse(environment).options == {"environment_type": environment["type"], **config}


def test_limits_are_divided_among_the_workers() -> None:
    runner = PortableRunner.parse({**PORTABLE, "workers": 3})
    assert workers_of(runner, Limits()) == 3
    assert limits_of_a_worker(runner, Limits()).expected_workers == 3


def test_workers_elsewhere_have_the_keys() -> None:
    assert workers_have_keys(PortableRunner.parse(PORTABLE))
    assert not workers_have_keys(PortableRunner.parse({**PORTABLE, "environment": {"type": "LOOPBACK"}}))
