"""Launches a task's job on Dataflow, with Beam or from a Flex Template."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_llmbeam.jobs.launcher import JobLauncher
from airflow_provider_llmbeam.jobs.outcome import JobResult, failure
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.jobs.registry import SubmittedJob
from airflow_provider_llmbeam.spec.identity import dataflow_name, job_identity, labels
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.source import FilesSource

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook
    from airflow_provider_llmbeam.hooks.storage import StorageHook

_FLEXRS = {"cost_optimized": "FLEXRS_COST_OPTIMIZED", "speed_optimized": "FLEXRS_SPEED_OPTIMIZED"}


class DataflowLauncher(JobLauncher):
    """Launches the job of one task on Dataflow."""

    service = "Dataflow"

    def project(self, location: str) -> str:
        """Returns the project of the connection or of its credentials.

        Raises:
            JobSpecError: Neither names one.
        """
        from airflow_provider_llmbeam.hooks.google.errors import before_submission

        with before_submission():
            return self._hook(location, None).project

    def find_command(self, spec: JobSpec) -> str:
        """Returns the shell command that lists the jobs of the task."""
        runner = _runner(spec)
        return (
            f"gcloud dataflow jobs list --status=active '--filter=name:{job_identity(spec)}-*' "
            f"--region={runner.location} --project={runner.project}"
        )

    def collect(self, job: SubmittedJob, result: JobResult) -> dict[str, Any]:
        """Reads the report of a finished job; the error of one that did not start is that of its launcher."""
        uri = job.launch_error_uri
        if result.outcome == "failed" and uri and (text := self._read_file(job, uri, "error of the launcher")):
            error = failure([text], f"The launcher of Dataflow job {job.id!r}", job.journal_uri)
            result = replace(result, message=str(error), error_type=type(error).__name__)
        return super().collect(job, result)

    def _check(self, spec: JobSpec) -> None:
        """Checks each bucket of the job once; Beam would retry for minutes and report less."""
        uris = [spec.paths.temp_uri, spec.paths.home_uri, spec.paths.output_uri]
        if isinstance(spec.source, FilesSource):
            uris.append(spec.source.uri)
        storage = self._storage(_runner(spec).project)
        for uri in {urlsplit(uri)[:2]: uri for uri in reversed(uris)}.values():
            if uri.startswith("gs://"):
                storage.check(uri)

    def _submit(self, spec: JobSpec) -> str:
        from airflow_provider_llmbeam.hooks.google.errors import before_submission

        runner = _runner(spec)
        hook, storage = self._hook(runner.location, runner.project), self._storage(runner.project)
        with before_submission():
            if runner.flex_template is not None:
                return self._launch(spec, runner, runner.flex_template, hook, storage)
            # For later inspection of the job. If this write is refused, Beam's would be, too, after minutes.
            storage.write(f"{spec.paths.temp_uri}{dataflow_name(spec)}.json", spec.model_dump_json())
            chain = self._chain if isinstance(self._chain, str) else ",".join(self._chain or ())
            from airflow_provider_llmbeam.hooks.kafka import kafka_environment

            self._fail_if_killed()
            self._process = JobProcess(spec, kafka_environment(source=spec.source), self._log)
            with hook.provide_gcp_credential_file_as_context():
                arguments = [f"--impersonate_service_account={chain}"] if chain else []
                return str(self._process.submit(arguments)["id"])

    def _launch(
        self, spec: JobSpec, runner: DataflowRunner, template_uri: str, hook: DataflowJobHook, storage: StorageHook
    ) -> str:
        spec_uri = f"{spec.paths.home_uri}spec.json"
        storage.write(spec_uri, spec.model_dump_json())
        storage.write(spec.paths.launch_error_uri, "")  # that of an earlier try
        self._fail_if_killed()
        launched = hook.launch_flex_template(
            template_uri,
            name=dataflow_name(spec),
            parameters={"spec": spec_uri},
            environment=environment(runner, spec.paths.temp_uri),
            labels=labels(spec),
        )
        return launched.job_id

    def _hook(self, location: str, project: str | None) -> DataflowJobHook:
        from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook

        return DataflowJobHook(location, project, self._gcp_conn_id, self._chain)

    def _storage(self, project: str | None) -> StorageHook:
        from airflow_provider_llmbeam.hooks.storage import StorageHook

        return StorageHook(project, self._gcp_conn_id, self._chain)


def environment(runner: DataflowRunner, temp_uri: str) -> dict[str, Any]:
    """Returns the fields of `FlexTemplateRuntimeEnvironment`, without those that the runner does not set.

    Args:
        runner: Runner of the spec.
        temp_uri: Directory in which Dataflow stages files.
    """
    experiments = runner.options.get("experiments", [])
    fields = {
        "temp_location": temp_uri,
        "staging_location": temp_uri,
        "machine_type": runner.machine_type,
        "num_workers": runner.num_workers,
        "max_workers": runner.max_workers,
        "service_account_email": runner.service_account,
        "network": runner.network,
        "subnetwork": runner.subnetwork,
        "ip_configuration": "WORKER_IP_PUBLIC" if runner.use_public_ips else "WORKER_IP_PRIVATE",
        "flexrs_goal": _FLEXRS.get(runner.flexrs or ""),
        "sdk_container_image": runner.container_image,
        "additional_experiments": experiments if isinstance(experiments, list) else [str(experiments)],
        "additional_pipeline_options": [
            argument
            for name, value in runner.options.items()
            if name != "experiments"
            for argument in _arguments(name, value)
        ],
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _arguments(name: str, value: bool | int | float | str | list[str]) -> list[str]:
    """Returns an option as arguments of Beam's command line; an option that is off is omitted."""
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    return [f"--{name}={each}" for each in (value if isinstance(value, list) else [value])]


def _runner(spec: JobSpec) -> DataflowRunner:
    assert isinstance(spec.runner, DataflowRunner)
    return spec.runner
