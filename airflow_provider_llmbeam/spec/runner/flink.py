"""A cluster of Apache Flink."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.fields.names import BeamOptions, ClusterUrl, HostAndPort
from airflow_provider_llmbeam.spec.runner.environment import WorkerEnvironment

#: Hosts of a sidecar, as its task manager names it.
_OWN_HOSTS = ("localhost", "127.0.0.1")


class FlinkRunner(SpecModel):
    """A session cluster of Apache Flink, through its REST API and Beam's job server for Flink.

    Attributes:
        rest_url: Address of the REST API of the job manager, e.g. `http://flink-jobmanager:8081`.
        job_endpoint: Address of a job server of Beam that runs already, e.g. `localhost:8099`; it submits to the
            same cluster. Either this or `job_server_jar` is needed.
        job_server_jar: Path of the jar of Beam's job server for this version of Flink, which the task starts with
            Java for the submission.
        flink_version: Version of the cluster, one that Beam 2.77 has a runner for.
        parallelism: Number of parallel instances of each operation. `None`: `task_managers`.
        task_managers: Number of task managers; each has one worker process, and `limits` are divided among them.
        environment: Where the workers come from. They need this package, and the keys of the model and the sink in
            their environment.
        cancel_on_kill: Whether the job is cancelled when its task is killed, cleared, marked or times out.
        poll_interval_seconds: Interval between polls of the job, in seconds.
        options: Other pipeline options of Beam. Everyone with access to the job can read them: never put a key
            here.
    """

    type: Literal["flink"]
    rest_url: ClusterUrl
    job_endpoint: HostAndPort | None = None
    job_server_jar: str | None = None
    flink_version: Literal["1.19", "1.20", "2.0", "2.1", "2.2"]
    parallelism: Annotated[int, Field(ge=1)] | None = None
    task_managers: Annotated[int, Field(ge=1)] = 1
    environment: WorkerEnvironment
    cancel_on_kill: bool = True
    poll_interval_seconds: Annotated[float, Field(ge=1)] = 15.0
    options: BeamOptions = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_job_server(self) -> Self:
        if self.job_endpoint is None and self.job_server_jar is None:
            raise FieldFaultError("job_endpoint", "this field, or `job_server_jar`, is needed")
        if self.job_endpoint is not None and self.job_server_jar is not None:
            raise FieldFaultError("job_server_jar", "must be left out with `job_endpoint`", self.job_server_jar)
        return self

    @model_validator(mode="after")
    def _workers_beside_the_task_managers(self) -> Self:
        address = self.environment.address
        if self.environment.type == "LOOPBACK":
            raise FieldFaultError(
                "environment.type",
                "must be 'EXTERNAL', 'PROCESS' or 'DOCKER': the process that submits the job, in which 'LOOPBACK' "
                "has the workers, ends",
                self.environment.type,
            )
        # All task managers give their worker the same id, so that in a pool that they share one stops that of the
        # other (`worker_pool_main.py` of Beam 2.77).
        if self.task_managers > 1 and address is not None and address.partition(":")[0] not in _OWN_HOSTS:
            raise FieldFaultError(
                "environment.address",
                "must be on localhost with several task managers: a pool that they share stops workers in use",
                address,
            )
        return self

    @property
    def parallel_instances(self) -> int:
        """Number of parallel instances of each operation."""
        return self.parallelism or self.task_managers
