"""Runners of the pipeline."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.fields.names import (
    BucketUri,
    EnvironmentSecrets,
    Labels,
    ObjectUri,
    ProjectId,
    Region,
)
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.runner.flink import FlinkRunner
from airflow_provider_llmbeam.spec.runner.portable import PortableRunner
from airflow_provider_llmbeam.spec.runner.prism import PrismRunner

#: Beam options that are set from fields of the spec, with the field.
_OPTION_FIELDS = {
    "runner": "type",
    "project": "project",
    "region": "location",
    "job_name": "name of the job",
    "temp_location": "temp_uri",
    "staging_location": "temp_uri",
    "machine_type": "machine_type",
    "worker_machine_type": "machine_type",
    "num_workers": "num_workers",
    "max_num_workers": "max_workers",
    "service_account_email": "service_account",
    "network": "network",
    "subnetwork": "subnetwork",
    "use_public_ips": "use_public_ips",
    "no_use_public_ips": "use_public_ips",
    "labels": "labels",
    "flexrs_goal": "flexrs",
    "sdk_container_image": "container_image",
}


class DirectRunner(SpecModel):
    """A separate process on the machine of the task."""

    type: Literal["direct"] = "direct"


class DataflowRunner(SpecModel):
    """Google Cloud Dataflow.

    Attributes:
        project: Google Cloud project that is billed. `None`: that of the Airflow connection or the credentials.
        location: Region of the workers, e.g. `europe-west1`.
        temp_uri: Directory on Cloud Storage in which Dataflow stages files. `None`: below `state_uri` or the sink.
        machine_type: Machine type of a worker, e.g. `n2-standard-2`. `None`: Dataflow chooses.
        num_workers: Initial number of workers. `None`: as many as the quota keeps busy; without a quota Dataflow
            chooses.
        max_workers: Maximum number of workers. `None`: as many as the quota keeps busy, see `spec.runner.workers`.
        expected_latency_seconds: Expected duration of one request, in seconds; the number of workers is derived
            from it.
        service_account: Email of the service account of the workers.
        network: VPC network of the workers.
        subnetwork: Subnetwork of the workers, `regions/REGION/subnetworks/NAME`, or its full address.
        use_public_ips: Whether workers have public addresses. Without, they need Private Google Access and a
            `container_image` that contains the requirements.
        labels: Labels added to the job, e.g. for billing.
        flexrs: Goal of flexible resource scheduling: cheaper workers, and a start within six hours.
        container_image: Image of the workers, with the requirements installed. `None`: they are installed when a
            worker starts.
        flex_template: Address of a Flex Template, `gs://….json`, made by `scripts/build-template`. The job is
            launched from it, and the Airflow worker needs no Beam.
        environment_secrets: Environment variables of the workers, each from a secret of Secret Manager:
            `{"GOOGLE_API_KEY": "projects/p/secrets/gemini-key/versions/latest"}`.
        max_runtime_seconds: Maximum duration of the job, in seconds, enforced by Dataflow itself, independently of
            Airflow.
        cancel_on_kill: Whether the job is cancelled when its task is killed, cleared, marked or times out.
        poll_interval_seconds: Interval between polls of the job, in seconds.
        options: Other pipeline options of Beam, e.g. `{"experiments": ["…"], "disk_size_gb": 50}`. Everyone with
            access to the job can read them: never put a key here.
    """

    type: Literal["dataflow"]
    project: ProjectId | None = None
    location: Region
    temp_uri: BucketUri | None = None
    machine_type: str | None = None
    num_workers: Annotated[int, Field(ge=1)] | None = None
    max_workers: Annotated[int, Field(ge=1)] | None = None
    expected_latency_seconds: Annotated[float, Field(gt=0)] = 5.0
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    use_public_ips: bool = True
    labels: Labels = Field(default_factory=dict)
    flexrs: Literal["cost_optimized", "speed_optimized"] | None = None
    container_image: str | None = None
    flex_template: ObjectUri | None = None
    environment_secrets: EnvironmentSecrets = Field(default_factory=dict)
    max_runtime_seconds: Annotated[int, Field(ge=60)] | None = None
    cancel_on_kill: bool = True
    poll_interval_seconds: Annotated[float, Field(ge=10)] = 30.0
    options: dict[str, bool | int | float | str | list[str]] = Field(default_factory=dict)

    @field_validator("temp_uri")
    @classmethod
    def _directory(cls, uri: str | None) -> str | None:
        return uri if uri is None or uri.endswith("/") else f"{uri}/"

    @field_validator("labels")
    @classmethod
    def _own_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for key in labels:
            if key.startswith("llmbeam-"):
                raise ValueError(f"has a label {key!r}: those that start with 'llmbeam-' are reserved")
        return labels

    @field_validator("options")
    @classmethod
    def _options(
        cls, options: dict[str, bool | int | float | str | list[str]]
    ) -> dict[str, bool | int | float | str | list[str]]:
        for name in options:
            if name in _OPTION_FIELDS:
                raise ValueError(f"has {name!r}, which `{_OPTION_FIELDS[name]}` sets already")
        return options

    @model_validator(mode="after")
    def _initial_workers_within_maximum(self) -> Self:
        if self.num_workers is not None and self.max_workers is not None and self.num_workers > self.max_workers:
            raise ValueError(
                f"starts with more workers (`num_workers`, {self.num_workers}) than the maximum (`max_workers`, "
                f"{self.max_workers})"
            )
        return self


Runner = Annotated[
    DirectRunner | PrismRunner | FlinkRunner | PortableRunner | DataflowRunner,
    Field(discriminator="type"),
    BeforeValidator(from_text),
]
#: Runners whose workers are part of the process of the job, on the machine of the task.
LocalRunner = DirectRunner | PrismRunner
#: Runners whose jobs outlive the process that submits them, and are found again by their names.
DetachedRunner = DataflowRunner | FlinkRunner


def is_in_network(runner: Runner, network: str) -> bool:
    """Whether the workers of a runner are in a VPC network; that of a subnetwork cannot be seen from its name.

    Args:
        runner: The runner.
        network: The network, `projects/NUMBER/global/networks/NAME`.
    """
    if not isinstance(runner, DataflowRunner):
        return False
    own = (runner.network or "").rpartition("/")[2]
    return runner.subnetwork is not None or own == network.rpartition("/")[2]


def workers_have_keys(runner: Runner) -> bool:
    """Whether the workers are elsewhere, so that they alone may have the keys of the model and the sink."""
    if isinstance(runner, PortableRunner):
        return runner.environment.type != "LOOPBACK"
    return isinstance(runner, DetachedRunner)
