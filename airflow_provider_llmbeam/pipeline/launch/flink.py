"""A job on a Flink cluster: its options, and its submission, which ends when the cluster has the job."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from typing import Any

from apache_beam.runners.runner import PipelineState
from apache_beam.version import __version__ as beam_version

from airflow_provider_llmbeam.exceptions import CloudError, JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.launch.portable import check_job_service
from airflow_provider_llmbeam.spec.identity import dataflow_name, flink_name, job_identity
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.remote_job import RemoteJob, flink_cancel_command
from airflow_provider_llmbeam.spec.runner import FlinkRunner
from airflow_provider_llmbeam.transport.flink import FlinkCluster

_log = logging.getLogger("llmbeam")

#: Time until the cluster has a job that was submitted, in seconds. A job server stages its jar of 170 MB first.
SUBMISSION_SECONDS = 600.0
_POLL_SECONDS = 1.0
#: Time for which a task manager keeps the worker of a job between two of its steps, in milliseconds.
_CACHE_MILLISECONDS = 600_000

#: Keys of the restart strategy, of Flink 1.19 and later and of those before.
_RESTART_KEYS = ("restart-strategy.type", "restart-strategy")
_NO_RESTART = frozenset({"none", "off", "disable"})
#: Name of a jar that Beam publishes.
_JAR = re.compile(r"beam-runners-flink-(?P<flink>\d+\.\d+)-job-server-(?P<beam>\d+\.\d+\.\d+)\.jar$")


def flink_options(spec: JobSpec, runner: FlinkRunner) -> dict[str, Any]:
    """Returns the runner of a spec as options of Beam, once the cluster was checked.

    Raises:
        JobSpecError: The cluster cannot run the job.
        JobFailedError: The cluster or the job server does not answer.
    """
    _check_cluster(runner)
    if runner.job_endpoint is not None:
        check_job_service(runner.job_endpoint)
    return {
        "runner": "FlinkRunner",
        "flink_master": runner.rest_url,
        "flink_version": runner.flink_version,
        "job_endpoint": runner.job_endpoint,
        "flink_job_server_jar": runner.job_server_jar,
        "job_name": flink_name(spec),
        "parallelism": runner.parallel_instances,
        "environment_cache_millis": _CACHE_MILLISECONDS,
        **runner.environment.options,
        "experiments": ["disable_logging_submission_environment"],
        "no_save_main_session": True,
        **runner.options,
    }


def started(pipeline: Any, spec: JobSpec, runner: FlinkRunner) -> Any:
    """Starts a job, and returns its result.

    Raises:
        JobFailedError: The cluster runs the job already.
    """
    if running := _named(FlinkCluster(runner.rest_url), spec, active_only=True):
        job_id = running[0].job_id
        raise JobFailedError(
            f"Job {spec.name!r} runs already on Flink, as {job_id!r}. To cancel it: "
            f"{flink_cancel_command(runner.rest_url, job_id)}. Nothing more was sent or billed."
        )
    return pipeline.run()


def submit_once(pipeline: Any, spec: JobSpec, runner: FlinkRunner) -> str:
    """Submits a job unless the cluster runs it already, and returns the ID that Flink gave it.

    Flink runs any number of jobs of one name. If two processes submit one at the same time, both see both jobs,
    and cancel all but the oldest.

    Raises:
        JobFailedError: It is not known whether the cluster has the job. A retry finds it, or submits it.
    """
    cluster = FlinkCluster(runner.rest_url)
    before = _named(cluster, spec, active_only=False)
    if running := [job for job in before if not job.is_over]:
        _log.info("Flink runs this job already: %s", running[0].job_id)
        return running[0].job_id
    first, *others = _wait_for_job(cluster, spec, pipeline.run(), {job.job_id for job in before})
    for job in others:
        _log.warning("Another try submitted the same job: %s goes on, %s is cancelled.", first.job_id, job.job_id)
        cluster.cancel(job.job_id)
    return first.job_id


def _wait_for_job(cluster: FlinkCluster, spec: JobSpec, result: Any, before: Collection[str]) -> list[RemoteJob]:
    """Returns the new jobs of the name of a job, the oldest first."""
    deadline = time.monotonic() + SUBMISSION_SECONDS
    while True:
        is_over = PipelineState.is_terminal(result.state)  # before the list, which has a job that has ended, too
        found = [job for job in _named(cluster, spec, active_only=False) if job.job_id not in before]
        if found:
            return sorted(found, key=lambda job: (job.created_at.timestamp() if job.created_at else 0, job.job_id))
        if is_over:
            result.wait_until_finish()  # raises the error of the job server
        if is_over or time.monotonic() >= deadline:
            raise JobFailedError(
                f"Job {spec.name!r} was submitted, and the cluster at {cluster.rest_url} did not show it within "
                f"{SUBMISSION_SECONDS:.0f} s. It may be running and billing; a retry finds it by its name, "
                f"{flink_name(spec)!r}."
            )
        time.sleep(_POLL_SECONDS)


def _named(cluster: FlinkCluster, spec: JobSpec, *, active_only: bool) -> list[RemoteJob]:
    name = dataflow_name(spec)
    return [job for job in cluster.find(job_identity(spec), active_only=active_only) if job.name == name]


def _check_cluster(runner: FlinkRunner) -> None:
    cluster = FlinkCluster(runner.rest_url)
    try:
        overview, configuration = cluster.overview(), cluster.configuration()
    except CloudError as error:
        kind = JobFailedError if error.retryable else JobSpecError
        raise kind(f"`runner.rest_url`: {error} Nothing was sent or billed.") from error
    if fault := cluster_fault(runner, overview, configuration, beam_version):
        raise JobSpecError(str(fault))
    if warning := cluster_warning(runner, overview):
        _log.warning("%s", warning)


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
