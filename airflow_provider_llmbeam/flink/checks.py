"""Whether a cluster can run a job: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.spec.runner.flink import FlinkRunner

#: Keys of the restart strategy, of Flink 1.19 and later and of those before.
_RESTART_KEYS = ("restart-strategy.type", "restart-strategy")
_NO_RESTART = frozenset({"none", "off", "disable"})
#: Name of a jar that Beam publishes.
_JAR = re.compile(r"beam-runners-flink-(?P<flink>\d+\.\d+)-job-server-(?P<beam>\d+\.\d+\.\d+)\.jar$")


def cluster_fault(
    runner: FlinkRunner, overview: Mapping[str, Any], configuration: Mapping[str, str], beam_version: str
) -> str | None:
    """Returns why a cluster cannot run a job, as the beginning of a message; `None` if it can.

    Args:
        runner: What the job expects.
        overview: Reply of `/overview`.
        configuration: Configuration of the job manager.
        beam_version: Version of Beam that submits the job.
    """
    version = str(overview.get("flink-version", ""))
    if not version.startswith(f"{runner.flink_version}."):
        return (
            f"`runner.flink_version`: the cluster at {runner.rest_url} has Flink {version!r}; got "
            f"{runner.flink_version!r}. Beam has a job server for each version, and the wrong one fails late."
        )
    if fault := _jar_fault(runner, beam_version):
        return fault
    strategy = next((configuration[key] for key in _RESTART_KEYS if key in configuration), "")
    if strategy.lower() in _NO_RESTART or not strategy:
        return (
            f"`runner.rest_url`: the cluster at {runner.rest_url} has no restart strategy, so that a job fails "
            "with the first task manager that is lost, and a pipeline option does not change that. Set "
            "`restart-strategy.type: fixed-delay` in the configuration of Flink."
        )
    return None


def cluster_warning(runner: FlinkRunner, overview: Mapping[str, Any]) -> str | None:
    """Returns a warning if the cluster has other task managers than the job expects, or too few slots."""
    managers, slots = int(overview.get("taskmanagers", 0)), int(overview.get("slots-available", 0))
    if managers > runner.task_managers:
        return (
            f"The cluster has {managers} task managers, and `runner.task_managers` is {runner.task_managers}: if "
            "more of them get a part of the job, its requests exceed `limits`."
        )
    if slots < runner.parallel_instances:
        wanted = runner.parallel_instances
        return f"The cluster has {slots} free slots, and the job needs {wanted}: it waits for more."
    return None


def _jar_fault(runner: FlinkRunner, beam_version: str) -> str | None:
    """Returns why a jar does not fit; one of another name says nothing about its versions."""
    found = _JAR.search(runner.job_server_jar or "")
    if found is None or (found["flink"], found["beam"]) == (runner.flink_version, beam_version):
        return None
    return (
        f"`runner.job_server_jar`: this is the job server of Beam {found['beam']} for Flink {found['flink']}; the "
        f"job needs that of Beam {beam_version} for Flink {runner.flink_version}: "
        f"'beam-runners-flink-{runner.flink_version}-job-server-{beam_version}.jar'."
    )
