"""Where the pipeline runs."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel

#: Beam options that follow from other fields of the spec, by the field that says the same.
_SAID_ELSEWHERE = {
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
    """A process of its own on the machine of the task."""

    type: Literal["direct"] = "direct"


class DataflowRunner(SpecModel):
    """Google Cloud Dataflow.

    Attributes:
        project: Google Cloud project that is billed; left out, that of the Airflow connection or the credentials.
        location: Region of the workers, e.g. `europe-west1`.
        temp_uri: Directory on Cloud Storage for what Dataflow stages. `None`: below `state_uri`, or the sink.
        machine_type: Of a worker, e.g. `n2-standard-2`. `None`: Dataflow chooses.
        num_workers: To begin with. `None`: as many as the quota keeps busy; without one Dataflow chooses.
        max_workers: At most. `None`: as many as the quota keeps busy, see `spec.workers`.
        expected_latency_seconds: Of one answer; the number of workers is derived from it.
        service_account: Email of the account that workers run as.
        network: VPC network of the workers.
        subnetwork: `regions/REGION/subnetworks/NAME`, or the whole address.
        use_public_ips: Whether workers have addresses of their own. Without, they need Private Google Access, and
            a `container_image` that holds the requirements.
        labels: Added to the job, e.g. for the bill.
        flexrs: Flexible resource scheduling: workers for less, and a start within six hours.
        container_image: Of the workers, with the requirements installed; left out, they are installed at start.
        flex_template: `gs://….json` made by `scripts/build-template`: the job is launched from it, and the
            Airflow worker needs no Beam.
        environment_secrets: Environment variables of the workers, each from a secret of Secret Manager:
            `{"GOOGLE_API_KEY": "projects/p/secrets/gemini-key/versions/latest"}`.
        max_runtime_seconds: Dataflow ends the job by itself after this time, whatever happened to Airflow.
        cancel_on_kill: Whether the job is cancelled when its task is killed, cleared, marked or times out.
        poll_interval_seconds: Between two looks at the job.
        options: Other pipeline options of Beam, e.g. `{"experiments": ["…"], "disk_size_gb": 50}`. Everybody who
            may see the job can read them: never put a key here.
    """

    type: Literal["dataflow"]
    project: Annotated[str, Field(pattern=r"^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$")] | None = None
    location: Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+$")]
    temp_uri: Annotated[str, Field(pattern=r"^gs://[^/]+")] | None = None
    machine_type: str | None = None
    num_workers: Annotated[int, Field(ge=1)] | None = None
    max_workers: Annotated[int, Field(ge=1)] | None = None
    expected_latency_seconds: Annotated[float, Field(gt=0)] = 5.0
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    use_public_ips: bool = True
    labels: dict[str, str] = Field(default_factory=dict)
    flexrs: Literal["cost_optimized", "speed_optimized"] | None = None
    container_image: str | None = None
    flex_template: Annotated[str, Field(pattern=r"^gs://[^/]+/.+")] | None = None
    environment_secrets: dict[str, str] = Field(default_factory=dict)
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
    def _labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for key, value in labels.items():
            if key.startswith("llmbeam-"):
                raise ValueError(f"has a label {key!r}: those that start with 'llmbeam-' are ours")
            if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
                raise ValueError(
                    f"has a label {key!r}: {value!r}; both must be at most 63 of a-z, 0-9, _ and -, and the key "
                    "must start with a letter"
                )
        return labels

    @field_validator("environment_secrets")
    @classmethod
    def _secrets(cls, secrets: dict[str, str]) -> dict[str, str]:
        for name, secret in secrets.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"has {name!r}, which cannot be the name of an environment variable")
            if not re.fullmatch(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+", secret):
                # The value may be the secret itself: never quoted.
                raise ValueError(f"must name a secret for {name!r}: 'projects/…/secrets/…/versions/latest'")
        return secrets

    @field_validator("options")
    @classmethod
    def _options(
        cls, options: dict[str, bool | int | float | str | list[str]]
    ) -> dict[str, bool | int | float | str | list[str]]:
        for name in options:
            if name in _SAID_ELSEWHERE:
                raise ValueError(f"has {name!r}, which `{_SAID_ELSEWHERE[name]}` says already")
        return options

    @model_validator(mode="after")
    def _not_more_than_at_most(self) -> Self:
        if self.num_workers is not None and self.max_workers is not None and self.num_workers > self.max_workers:
            raise ValueError(
                f"begins with more workers (`num_workers`, {self.num_workers}) than it may have (`max_workers`, "
                f"{self.max_workers})"
            )
        return self


Runner = Annotated[DirectRunner | DataflowRunner, Field(discriminator="type")]
