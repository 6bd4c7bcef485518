"""The client of the jobs of a region of Dataflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook
from airflow_provider_llmbeam.hooks.google.errors import before_submission
from airflow_provider_llmbeam.hooks.storage import StorageHook
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.spec.identity import dataflow_name, labels
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.source import FilesSource

_FLEXRS = {"cost_optimized": "FLEXRS_COST_OPTIMIZED", "speed_optimized": "FLEXRS_SPEED_OPTIMIZED"}


class DataflowClient(DataflowJobHook):
    """Submits the job of a task, in a process or from a Flex Template, besides what the hook does.

    Args:
        *args: Arguments of the hook.
        kms_key_name: Key of Cloud KMS that encrypts the files that it writes.
    """

    def __init__(self, *args: Any, kms_key_name: str | None = None) -> None:
        super().__init__(*args)
        self._kms_key_name = kms_key_name

    def files(self, uri: str) -> StorageHook:
        """Returns the client of Cloud Storage."""
        return StorageHook(self.project, self.gcp_conn_id, self.impersonation_chain, self._kms_key_name)

    def check(self, spec: JobSpec) -> None:
        """Checks each bucket of the job once; Beam would retry for minutes and report less."""
        uris = [spec.paths.temp_uri, spec.paths.home_uri, spec.paths.output_uri]
        if isinstance(spec.source, FilesSource):
            uris.append(spec.source.uri)
        for uri in {urlsplit(uri)[:2]: uri for uri in reversed(uris)}.values():
            if uri.startswith("gs://"):
                self.files(uri).check(uri)

    def submit(self, spec: JobSpec, start: Callable[[], JobProcess]) -> str:
        """Submits a job, and returns its ID.

        Raises:
            JobSpecError: It was refused, and nothing was billed.
        """
        runner = spec.runner
        assert isinstance(runner, DataflowRunner)
        with before_submission():
            if runner.flex_template is not None:
                return self._launch(spec, runner, runner.flex_template, start)
            # For later inspection of the job. If this write is refused, Beam's would be, too, after minutes.
            uri = f"{spec.paths.temp_uri}{dataflow_name(spec)}.json"
            self.files(uri).write(uri, spec.model_dump_json())
            chain = self.impersonation_chain or ()
            chain = chain if isinstance(chain, str) else ",".join(chain)
            process = start()
            with self.provide_gcp_credential_file_as_context():
                return process.submit([f"--impersonate_service_account={chain}"] if chain else [])["id"]

    def _launch(
        self, spec: JobSpec, runner: DataflowRunner, template_uri: str, start: Callable[[], JobProcess]
    ) -> str:
        spec_uri = f"{spec.paths.home_uri}spec.json"
        files = self.files(spec_uri)
        files.write(spec_uri, spec.model_dump_json())
        files.write(spec.paths.launch_error_uri, "")  # that of an earlier try
        start().stage()  # Dataflow submits the job; and this fails if the task was killed
        launched = self.launch_flex_template(
            template_uri,
            name=dataflow_name(spec),
            parameters={"spec": spec_uri},
            environment=environment(runner, spec.paths.temp_uri, spec.kms_key_name),
            labels=labels(spec),
        )
        return launched.job_id


def environment(runner: DataflowRunner, temp_uri: str, kms_key_name: str | None) -> dict[str, Any]:
    """Returns the fields of `FlexTemplateRuntimeEnvironment`, without those that the runner does not set.

    Args:
        runner: Runner of the spec.
        temp_uri: Directory in which Dataflow stages files.
        kms_key_name: Key of Cloud KMS of the job.
    """
    experiments = runner.options.get("experiments", [])
    fields = {
        "temp_location": temp_uri,
        "staging_location": temp_uri,
        "kms_key_name": kms_key_name,
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
