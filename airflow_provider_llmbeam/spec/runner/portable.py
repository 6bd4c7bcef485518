"""Any runner of Beam behind a job service."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.fields.names import BeamOptions, HostAndPort
from airflow_provider_llmbeam.spec.runner.environment import WorkerEnvironment


class PortableRunner(SpecModel):
    """A runner of Beam behind a job service, e.g. that of Spark.

    A process on the machine of the task submits the job and waits for it. No job service has to offer a way to
    find a job again: when that process ends, the job service is asked to cancel the job, and whether it can or
    not, the workers record what is in flight and send nothing more.

    Attributes:
        job_endpoint: Address of the job service, e.g. `localhost:8099`.
        artifact_endpoint: Address of its artifact service. `None`: that which the job service names.
        environment: Where the workers come from. They need this package, and the keys of the model and the sink in
            their environment.
        workers: Number of worker processes among which `limits` are divided.
        options: Other pipeline options of Beam. Everyone with access to the job can read them: never put a key
            here.
    """

    type: Literal["portable"]
    job_endpoint: HostAndPort
    artifact_endpoint: HostAndPort | None = None
    environment: WorkerEnvironment
    workers: Annotated[int, Field(ge=1)] = 1
    options: BeamOptions = Field(default_factory=dict)
