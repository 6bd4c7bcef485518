"""Runners of the pipeline, the number of their workers, and the keys that these need."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.fields.names import (
    BeamOptions,
    BucketUri,
    ClusterUrl,
    EnvironmentSecrets,
    HostAndPort,
    JobService,
    Labels,
    OptionValue,
    ProgramName,
    ProjectId,
    Region,
    TemplateUri,
    programs_in,
)
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.sink import KafkaSink, MilvusSink, PostgresSink, Sink

#: The field that each type needs; one model instead of four, as each takes time when a Dag is parsed.
_FIELDS = {"EXTERNAL": "address", "PROCESS": "command", "DOCKER": "image"}

#: Hosts of a sidecar, as its task manager names it.
_OWN_HOSTS = ("localhost", "127.0.0.1")
#: Environment variable with the path of the binary, where `PrismRunner.binary_path` is not set.
BINARY_VARIABLE = "PRISM_LOCATION"
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
    "dataflow_kms_key": "kms_key_name",
}
#: Maximum number of workers if no quota of requests is known. The limit of Dataflow itself is in the thousands.
MAX_WORKERS_WITHOUT_QUOTA = 10
_EXAMPLE = "'projects/…/secrets/…/versions/latest'"


class WorkerEnvironment(SpecModel):
    """Origin of the workers, in the terms of Beam.

    Attributes:
        type: `EXTERNAL`: processes of a worker pool that runs already, such as a sidecar of each task manager.
            `PROCESS`: processes that the runner starts on its machines. `DOCKER`: containers that it starts.
            `LOOPBACK`: threads of the process that submits the job, for a runner with one worker on the same
            machine.
        address: Address of the pool as the runner reaches it, for `EXTERNAL`, e.g. `localhost:50000`.
        command: Path of Beam's boot program on the machines of the runner, for `PROCESS`.
        image: Image with Beam's boot program and this package, for `DOCKER`.
    """

    type: Literal["EXTERNAL", "PROCESS", "DOCKER", "LOOPBACK"]
    address: HostAndPort | None = None
    command: ProgramName | None = None
    image: ProgramName | None = None

    @model_validator(mode="after")
    def _the_field_of_the_type(self) -> Self:
        needed = _FIELDS.get(self.type)
        for field in _FIELDS.values():
            value = getattr(self, field)
            if field == needed and not value:
                raise FieldFaultError(field, f"this field is needed with type {self.type!r}", value)
            if field != needed and value is not None:
                raise FieldFaultError(field, f"must be left out with type {self.type!r}", value)
        return self

    @property
    def options(self) -> dict[str, str]:
        """Options of Beam, without the dashes."""
        config = self.address or self.image
        if self.command is not None:
            config = json.dumps({"command": self.command})
        # Not `environment_options`: with them Beam 2.77 fails for EXTERNAL (`ExternalEnvironment.from_options`).
        return {"environment_type": self.type} | ({} if config is None else {"environment_config": config})


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
    job_endpoint: JobService
    artifact_endpoint: JobService | None = None
    environment: WorkerEnvironment
    workers: Annotated[int, Field(ge=1)] = 1
    options: BeamOptions = Field(default_factory=dict)


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
    job_endpoint: JobService | None = None
    job_server_jar: ProgramName | None = None
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


class PrismRunner(SpecModel):
    """Prism, which runs beside a separate process on the machine of the task, and ends with it.

    Attributes:
        binary_path: Path of the binary of Prism on that machine. `None`: the environment variable
            `PRISM_LOCATION`. Nothing is downloaded at run time.
    """

    type: Literal["prism"]
    binary_path: ProgramName | None = None


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
        max_workers: Maximum number of workers. `None`: as many as the quota keeps busy, see `max_workers`.
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
    container_image: ProgramName | None = None
    flex_template: TemplateUri | None = None
    environment_secrets: EnvironmentSecrets = Field(default_factory=dict)
    max_runtime_seconds: Annotated[int, Field(ge=60)] | None = None
    cancel_on_kill: bool = True
    poll_interval_seconds: Annotated[float, Field(ge=10)] = 30.0
    options: dict[str, OptionValue] = Field(default_factory=dict)

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
    def _options(cls, options: dict[str, OptionValue]) -> dict[str, OptionValue]:
        for name in options:
            if name in _OPTION_FIELDS:
                raise ValueError(f"has {name!r}, which `{_OPTION_FIELDS[name]}` sets already")
        return programs_in(options)

    @model_validator(mode="after")
    def _initial_workers_within_maximum(self) -> Self:
        if self.num_workers is not None and self.max_workers is not None and self.num_workers > self.max_workers:
            raise ValueError(
                f"starts with more workers (`num_workers`, {self.num_workers}) than the maximum (`max_workers`, "
                f"{self.max_workers})"
            )
        return self


def runner_data(value: Any) -> Any:
    """Returns the fields of a runner that is given by its type alone; other values unchanged."""
    value = from_text(value)
    return {"type": value} if isinstance(value, str) else value


Runner = Annotated[
    DirectRunner | PrismRunner | FlinkRunner | PortableRunner | DataflowRunner,
    Field(discriminator="type"),
    BeforeValidator(runner_data),
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


def max_workers(runner: DataflowRunner, limits: Limits) -> int:
    """Returns the maximum number of workers of a job: as many as its quota keeps busy.

    Little's law: a rate of r requests a second, each of which takes s seconds, keeps r × s requests in flight; a
    worker, which is one process, has `limits.max_in_flight` of them. Never fewer than the initial number.
    """
    if runner.max_workers is not None:
        return runner.max_workers
    initial = runner.num_workers or 1
    if limits.requests_per_minute is None:
        return max(initial, MAX_WORKERS_WITHOUT_QUOTA)
    per_second = limits.requests_per_minute * limits.share_ratio / 60
    return max(initial, math.ceil(per_second * runner.expected_latency_seconds / limits.max_in_flight))


def workers_of(runner: Runner, limits: Limits) -> int:
    """Returns the maximum number of processes that send requests: one per worker, or one on this machine."""
    match runner:
        case DataflowRunner():
            return max_workers(runner, limits)
        case PortableRunner():
            return runner.workers
        case FlinkRunner():
            return runner.task_managers
        case _:
            return 1


def first_workers(runner: DataflowRunner, limits: Limits) -> int | None:
    """Returns the initial number of workers; `None` leaves it to Dataflow.

    With a known quota it is the maximum number: Dataflow adds no workers while they use less than 5 % of their
    processors, and workers that wait for a model do.
    Source: cloud.google.com/dataflow/docs/horizontal-autoscaling
    """
    if runner.num_workers is not None or limits.requests_per_minute is None:
        return runner.num_workers
    return max_workers(runner, limits)


def limits_of_a_worker(runner: Runner, limits: Limits) -> Limits:
    """Returns the limits with `expected_workers` set."""
    if limits.expected_workers is not None or isinstance(runner, LocalRunner):
        return limits
    return limits.model_copy(update={"expected_workers": workers_of(runner, limits)})


def missing_worker_secrets(
    runner: DataflowRunner, sink: Sink, key_variables: Collection[str], header_variables: Collection[str] = ()
) -> str | None:
    """Describes, as the second half of a sentence, a key that the workers lack; `None` if they lack none.

    A custom image may contain keys, so with one nothing is reported. Servers that may not require a key (a
    self-hosted OpenAI API, Milvus) are not checked.

    Args:
        runner: The runner.
        sink: The sink.
        key_variables: Variables that may hold the key of the model; none if it requires no key.
        header_variables: Variables with the values of headers.
    """
    if runner.container_image is not None:
        return None
    given = runner.environment_secrets
    if key_variables and given.keys().isdisjoint(key_variables):
        name = next(iter(key_variables))
        vertex = ", or set `model.project` to use Vertex AI" if name == "GOOGLE_API_KEY" else ""
        return f"the workers need `{name}` for the model: name its secret, {{{name!r}: {_EXAMPLE}}}{vertex}"
    for name in header_variables:
        if name not in given:
            return f"the workers need {name!r} for `model.headers`: name its secret, {{{name!r}: {_EXAMPLE}}}"
    if isinstance(sink, PostgresSink) and sink.dsn_env not in given:
        return (
            f"the workers need {sink.dsn_env!r} for the sink: name the secret that holds it, "
            f"{{{sink.dsn_env!r}: {_EXAMPLE}}}, or use a sink of type 'bigquery' or 'files'"
        )
    if isinstance(sink, KafkaSink) and sink.conn_id is not None and sink.config_env not in given:
        return (
            f"the workers need {sink.config_env!r} for the sink: name the secret that holds it, "
            f"{{{sink.config_env!r}: {_EXAMPLE}}}"
        )
    return None


def sink_needs_worker_secrets(runner: Runner, sink: Sink) -> bool:
    """Whether only the workers may have the key and the network of the sink, so that they have to check it."""
    return workers_have_keys(runner) and isinstance(sink, PostgresSink | MilvusSink | KafkaSink)
