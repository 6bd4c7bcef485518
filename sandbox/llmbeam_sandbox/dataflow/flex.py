"""Flex templates: a file that describes a container, and the local command in place of the container."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.dataflow.job import lifeline
from llmbeam_sandbox.dataflow.responses import refused
from llmbeam_sandbox.dataflow.runs import Runs
from llmbeam_sandbox.dataflow.state import CANCELLED, FAILED, Job, Jobs
from llmbeam_sandbox.storage.state import ObjectStore

_log = logging.getLogger(__name__)

_OPTIONS = {
    "machineType": "worker_machine_type",
    "maxWorkers": "max_num_workers",
    "numWorkers": "num_workers",
    "serviceAccountEmail": "service_account_email",
    "network": "network",
    "subnetwork": "subnetwork",
    "workerZone": "worker_zone",
    "workerRegion": "worker_region",
    "diskSizeGb": "disk_size_gb",
    "kmsKeyName": "dataflow_kms_key",
    "sdkContainerImage": "sdk_container_image",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a template.

    Attributes:
        name: Name of the job.
        parameters: Parameters of the container.
        environment: Settings of the workers.
        labels: Labels of the job.
    """

    name: str
    parameters: Mapping[str, str]
    environment: Mapping[str, Any]
    labels: Mapping[str, str]


def read(store: ObjectStore, parameter: Mapping[str, Any]) -> Launch:
    """Reads and checks a `LaunchFlexTemplateParameter`.

    Raises:
        RestError: The template is missing or invalid, or the parameters do not match those that it declares.
    """
    uri = str(parameter.get("containerSpecGcsPath") or "")
    spec = parameter.get("containerSpec") or _template(store, uri)
    if not isinstance(spec, dict) or not spec.get("image"):
        raise refused(400, f"Unable to parse template file '{uri}': it names no container image.")
    parameters = {str(name): str(value) for name, value in (parameter.get("parameters") or {}).items()}
    _check(spec.get("metadata") or {}, parameters)
    environment = parameter.get("environment") or {}
    return Launch(
        name=str(parameter.get("jobName") or ""),
        parameters=parameters,
        environment=environment,
        labels=dict(environment.get("additionalUserLabels") or {}),
    )


def job_object_uri(launch: Launch, job: Job) -> str:
    """Returns the address to which the container writes its job."""
    return f"{_staging(launch, job).rstrip('/')}/template_launches/{job.id}/job_object"


def _temp(launch: Launch, job: Job) -> str:
    default = f"gs://dataflow-staging-{job.location}-{job.project}/tmp"
    return str(launch.environment.get("tempLocation") or default)


def _staging(launch: Launch, job: Job) -> str:
    return str(launch.environment.get("stagingLocation") or _temp(launch, job))


def arguments(launch: Launch, job: Job) -> list[str]:
    """Returns the options of the container: it writes the job to `template_location`, and submits nothing.

    Source: cloud.google.com/dataflow/docs/guides/troubleshoot-templates
    """
    environment = launch.environment
    options = {
        "runner": "DataflowRunner",
        "project": job.project,
        "region": job.location,
        "template_location": job_object_uri(launch, job),
        "job_name": launch.name,
        "temp_location": _temp(launch, job),
        "staging_location": _staging(launch, job),
    }
    options |= {option: environment[field] for field, option in _OPTIONS.items() if environment.get(field)}
    listed = [f"--{name}={value}" for name, value in (dict(launch.parameters) | options).items()]
    if environment.get("ipConfiguration") in ("WORKER_IP_PRIVATE", 2):
        listed.append("--no_use_public_ips")
    listed += [f"--labels={name}={value}" for name, value in launch.labels.items()]
    return listed + [f"--experiments={one}" for one in environment.get("additionalExperiments") or ()]


class Launcher:
    """Runs the command in place of the container, and submits the job that it wrote.

    Args:
        jobs: Jobs and their states.
        runs: Processes of the jobs.
        store: Cloud Storage.
        command: The command, to which the options are added.
        submit: Checks and executes a queued job, which gets the fields that the command wrote.
    """

    def __init__(
        self,
        jobs: Jobs,
        runs: Runs,
        store: ObjectStore,
        command: Sequence[str],
        submit: Callable[[Job, dict[str, Any]], None],
    ) -> None:
        self._jobs = jobs
        self._runs = runs
        self._store = store
        self._command = tuple(command)
        self._submit = submit

    def start(self, job: Job, launch: Launch) -> None:
        """Starts the launch of a queued job."""
        self._runs.in_thread(job, self._launch, launch)

    def _launch(self, job: Job, launch: Launch) -> None:
        self._runs.pause(job)
        options = arguments(launch, job)

        def start(directory: Path, environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-P", str(lifeline.__file__), *self._command, *options],
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        run = self._runs.start(job, start, "launcher")
        status = run.wait() if run is not None else 0
        if run is None or self._runs.is_cancelled(job):
            self._jobs.move(job, CANCELLED)
            return
        try:
            if status != 0:
                raise refused(400, f"The launcher ended with exit status {status}.")
            bucket, _, name = job_object_uri(launch, job).removeprefix("gs://").partition("/")
            self._submit(job, json.loads(self._store.get(bucket, name, {}).data))
        except RestError as error:
            _log.warning("Launcher of job %s: %s The end of its log:\n%s", job.id, error.message, run.log_tail())
            # The whole message: the log is that of the machine, in Cloud Logging.
            text = "Error occurred in the launcher container: Template launch failed. See console logs."
            self._jobs.log(job, "JOB_MESSAGE_ERROR", text)
            self._jobs.move(job, FAILED)


def _template(store: ObjectStore, uri: str) -> Any:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    if not uri.startswith("gs://") or not name:
        raise refused(400, f"Invalid value for containerSpecGcsPath: '{uri}' is not a gs:// path of a file.")
    try:
        found = store.get(bucket, name, {})
    except RestError as error:
        raise refused(404, f"Unable to open template file: {uri}.") from error
    try:
        return json.loads(found.data)
    except ValueError as error:
        raise refused(400, f"Unable to parse template file '{uri}': it is not JSON. {error}") from error


def _check(metadata: Mapping[str, Any], parameters: Mapping[str, str]) -> None:
    declared = {str(one["name"]): one for one in metadata.get("parameters") or () if one.get("name")}
    if not declared:
        return
    faults = [f"{name}: Unrecognized parameter" for name in parameters if name not in declared]
    faults += [
        f"{name}: Missing required parameter"
        for name, one in declared.items()
        if name not in parameters and not one.get("isOptional")
    ]
    if faults:
        raise refused(400, "The template parameters are invalid. Details: \n" + "\n".join(faults))
