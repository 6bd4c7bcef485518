"""The checks that follow from a job: what it needs of Google Cloud, of its model and of this machine. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from airflow_provider_llmbeam.spec import (
    BigQuerySink,
    BigQuerySource,
    DistilledStage,
    FilesSink,
    FilesSource,
    JobSpec,
    KafkaSink,
    KafkaSource,
    Limits,
    PostgresSink,
    PubSubSink,
    PubSubSource,
    StreamOptions,
)
from airflow_provider_llmbeam.spec.identity import dead_letter_topic
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.runner import DataflowRunner, FlinkRunner
from airflow_provider_llmbeam.spec.safety import FilesAudit, PatternsDetector

ResourceKind = Literal[
    "project", "bucket", "dataset", "table", "secret", "service_account", "topic", "subscription", "key"
]

# Permissions of the roles that docs/dataflow.md and docs/composer.md ask for.
# Source of Dataflow's: cloud.google.com/dataflow/docs/concepts/access-control (2026-11-29); the others were not
# compared with docs.cloud.google.com/iam/docs/roles-permissions.
_READ = ("storage.objects.get", "storage.objects.list")
_WRITE = ("storage.objects.create", "storage.objects.delete", *_READ)
_SUBMIT = tuple(f"dataflow.{name}" for name in ("jobs.cancel", "jobs.create", "jobs.get", "jobs.list"))
_WORK = tuple(
    f"dataflow.{name}" for name in ("shuffle.read", "shuffle.write", "workItems.lease", "workItems.update")
)
_BATCHES = tuple(f"aiplatform.batchPredictionJobs.{verb}" for verb in ("cancel", "create", "get", "list"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What has permissions of its own.

    Attributes:
        kind: Its kind.
        name: Project, bucket, email, `project.dataset` or `project.dataset.table`; else `projects/…`.
    """

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesCheck:
    """The APIs that must be enabled in a project."""

    project: str
    services: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionCheck:
    """Permissions of an account on a resource, and the role that has them.

    Attributes:
        account: Email of an account that is impersonated; empty for the account of the connection.
        resource: The resource.
        permissions: The permissions.
        role: The role.
    """

    account: str = ""
    resource: Resource
    permissions: tuple[str, ...]
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationCheck:
    """The region that a bucket or a dataset must be in; an empty one only asks whether it exists."""

    resource: Resource
    location: str
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistsCheck:
    """A table, secret or account that a source or a runner names."""

    resource: Resource
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCheck:
    """A region of Dataflow."""

    project: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCheck:
    """A Flex Template."""

    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetworkCheck:
    """A subnetwork whose machines have no public addresses."""

    project: str
    location: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """A model server, the key or account that it gets, and the name of the model."""

    model: Model


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaCheck:
    """Quota and usage tier of a model."""

    model: Model
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCheck:
    """A key of Cloud KMS."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkCheck:
    """A cluster of Flink."""

    rest_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersCheck:
    """The servers of a source or a sink, one of which has to accept connections.

    Attributes:
        subject: Kind of server, and the part of the spec that names it.
        servers: Host and port of each, separated by commas; `None`: the variable names them.
        variable: Environment variable of the client settings, or of the connection string.
    """

    subject: str
    servers: str | None = None
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesCheck:
    """The packages of this environment, with those of extras."""

    extras: tuple[str, ...] = ()


Check = (
    ServicesCheck
    | PermissionCheck
    | LocationCheck
    | ExistsCheck
    | RegionCheck
    | TemplateCheck
    | SubnetworkCheck
    | ModelCheck
    | QuotaCheck
    | KeyCheck
    | FlinkCheck
    | ServersCheck
    | PackagesCheck
)


def local_checks(spec: JobSpec | None) -> tuple[Check, ...]:
    """Returns the checks that need no account of Google Cloud."""
    if spec is None:
        return (PackagesCheck(),)
    asked = (model for model in spec.models if model.type not in ("echo", "distilled"))  # which have no server
    models = (ModelCheck(model=model) for model in asked)
    return (PackagesCheck(extras=tuple(_extras(spec))), *models, *_servers(spec))


def _servers(spec: JobSpec) -> Iterator[Check]:
    for field, part in {"source": spec.source, **spec.sinks_by_field}.items():
        if isinstance(part, KafkaSource | KafkaSink):
            subject = f"Kafka of the {field}"
            yield ServersCheck(subject=subject, servers=part.bootstrap_servers, variable=part.config_env)
        if isinstance(part, PostgresSink):
            yield ServersCheck(subject=f"PostgreSQL of the {field}", variable=part.dsn_env)
    if isinstance(spec.runner, FlinkRunner):
        yield FlinkCheck(rest_url=spec.runner.rest_url)


def servers_of(check: ServersCheck, value: str) -> list[tuple[str, int]]:
    """Returns host and port of each server; none if they cannot be read.

    Args:
        check: The check.
        value: Value of its variable: settings of librdkafka in JSON, or a connection string of PostgreSQL.
    """
    try:
        if check.servers is not None or value.lstrip().startswith("{"):
            names, port = check.servers or str(json.loads(value).get("bootstrap.servers", "")), 9092
        elif "://" in value:
            names, port = urlsplit(value).netloc.rpartition("@")[2], 5432
        else:
            named = dict(re.findall(r"\b(host|port)\s*=\s*'?([^\s']+)", value))
            names, port = f"{named.get('host', '')}:{named.get('port', '')}", 5432
        parts = [urlsplit(f"//{name.strip().rpartition('://')[2]}") for name in names.split(",")]
        return [(part.hostname, part.port or port) for part in parts if part.hostname]
    except ValueError:  # of JSON, or of a port; the value may hold a password, and is not quoted
        return []


def cloud_checks(spec: JobSpec, project: str, workers: str) -> tuple[Check, ...]:
    """Returns the checks on Google Cloud, without repetitions.

    Args:
        spec: The job.
        project: Project of the connection.
        workers: Email of the account of the Dataflow workers; empty without such a runner.
    """
    found = [*_services(spec, project), *_of_runner(spec, project, workers)]
    for account in ("", workers) if workers else ("",):
        found += _permissions(spec, project, account)
    found += _places(spec)
    if spec.kms_key_name is not None:
        found.append(KeyCheck(name=spec.kms_key_name))
    found += [QuotaCheck(model=model, limits=spec.limits) for model in spec.models if model.project]
    return tuple(each for index, each in enumerate(found) if each not in found[:index])  # specs have no hash


def _extras(spec: JobSpec) -> Iterator[str]:
    types = {part.type for part in (spec.source, *spec.sinks_by_field.values())}
    yield from (extra for extra in ("kafka", "postgres", "milvus") if extra in types)
    privacy = spec.safety.privacy
    if privacy is not None and any(isinstance(each, PatternsDetector) for each in privacy.detectors):
        yield "privacy"
    if spec.cascade is not None and any(isinstance(stage, DistilledStage) for stage in spec.cascade.stages):
        yield "cascade"


def _services(spec: JobSpec, project: str) -> Iterator[Check]:
    runner, by_project = spec.runner, dict[str, list[str]]()

    def need(where: str, *names: str) -> None:
        by_project.setdefault(where, []).extend(f"{name}.googleapis.com" for name in names)

    if _buckets(spec):
        need(project, "storage")
    if isinstance(runner, DataflowRunner):
        need(
            runner.project or project,
            "dataflow",
            "compute",
            *(["secretmanager"] * bool(runner.environment_secrets)),
        )
    for part in (spec.source, *spec.sinks_by_field.values()):
        if isinstance(part, BigQuerySource | BigQuerySink):
            need(_payer(part, project), "bigquery")
        if isinstance(part, PubSubSource | PubSubSink):
            need(project, "pubsub")
    for model in spec.models:
        if model.project:
            need(model.project, "aiplatform")
    if spec.safety.privacy is not None and spec.safety.privacy.dlp is not None:
        need(project, "dlp")
    if spec.kms_key_name is not None:
        need(spec.kms_key_name.split("/")[1], "cloudkms")
    for where, services in by_project.items():
        yield ServicesCheck(project=where, services=tuple(dict.fromkeys(services)))


def _of_runner(spec: JobSpec, project: str, workers: str) -> Iterator[Check]:
    """Yields what Dataflow needs besides rows, answers and the model."""
    runner = spec.runner
    if not isinstance(runner, DataflowRunner):
        return
    where = runner.project or project
    of_project = Resource(kind="project", name=where)
    yield RegionCheck(project=where, location=runner.location)
    yield PermissionCheck(resource=of_project, permissions=_SUBMIT, role="roles/dataflow.developer")
    if workers:
        account = Resource(kind="service_account", name=workers)
        yield ExistsCheck(resource=account, field="runner.service_account")
        may_act = ("iam.serviceAccounts.actAs",)
        yield PermissionCheck(resource=account, permissions=may_act, role="roles/iam.serviceAccountUser")
        yield PermissionCheck(
            account=workers, resource=of_project, permissions=_WORK, role="roles/dataflow.worker"
        )
    for version in runner.environment_secrets.values():
        secret = Resource(kind="secret", name=version.partition("/versions/")[0])
        yield ExistsCheck(resource=secret, field="runner.environment_secrets")
        if workers:
            may_read = ("secretmanager.versions.access",)
            yield PermissionCheck(
                account=workers, resource=secret, permissions=may_read, role="roles/secretmanager.secretAccessor"
            )
    if runner.flex_template is not None:
        yield TemplateCheck(uri=runner.flex_template)
    if runner.subnetwork is not None and not runner.use_public_ips:
        yield SubnetworkCheck(project=where, location=runner.location, name=runner.subnetwork)


def _permissions(spec: JobSpec, project: str, account: str) -> Iterator[Check]:
    """Yields the permissions of an account that reads rows, asks the model and writes answers."""

    def need(kind: ResourceKind, name: str, role: str, *permissions: str) -> PermissionCheck:
        resource = Resource(kind=kind, name=name)
        return PermissionCheck(account=account, resource=resource, permissions=permissions, role=f"roles/{role}")

    for bucket, is_written in _buckets(spec).items():
        role = "storage.objectAdmin" if is_written else "storage.objectViewer"
        yield need("bucket", bucket, role, *(_WRITE if is_written else _READ))
    sinks = spec.sinks_by_field.values()
    for part in (spec.source, *sinks):
        if isinstance(part, BigQuerySource | BigQuerySink):
            yield need("project", _payer(part, project), "bigquery.jobUser", "bigquery.jobs.create")
    if isinstance(spec.source, BigQuerySource) and spec.source.table is not None:
        reads = ("bigquery.tables.export", "bigquery.tables.get", "bigquery.tables.getData")
        yield need("table", spec.source.table, "bigquery.dataViewer", *reads)
    if isinstance(spec.sink, BigQuerySink):
        writes = tuple(f"bigquery.tables.{verb}" for verb in ("create", "delete", "get", "getData", "updateData"))
        yield need("dataset", spec.sink.table.rpartition(".")[0], "bigquery.dataEditor", *writes)
    if isinstance(spec.source, PubSubSource):
        pulls = ("pubsub.subscriptions.consume",)
        yield need("subscription", spec.source.subscription, "pubsub.subscriber", *pulls)
    topics = [sink.topic for sink in sinks if isinstance(sink, PubSubSink)]
    # Options that a stream alone has; one that may create topics creates a missing one.
    if isinstance(spec.source, PubSubSource) and spec.stream != StreamOptions() and not spec.stream.create_topics:
        topics.append(dead_letter_topic(spec, spec.source))
    for topic in topics:
        yield need("topic", topic, "pubsub.publisher", "pubsub.topics.publish")
    for model in spec.models:
        if model.project:
            batches = _BATCHES if model == spec.model and spec.inference.mode != "online" else ()
            yield need("project", model.project, "aiplatform.user", "aiplatform.endpoints.predict", *batches)
    if spec.safety.privacy is not None and spec.safety.privacy.dlp is not None:
        yield need("project", project, "dlp.user", "serviceusage.services.use")


def _places(spec: JobSpec) -> Iterator[Check]:
    """Yields where buckets and datasets must be, and the table that is read."""
    region = spec.runner.location if isinstance(spec.runner, DataflowRunner) else ""
    for bucket in _buckets(spec):
        yield LocationCheck(
            resource=Resource(kind="bucket", name=bucket), location=region, field="runner.location"
        )
    for field, part in (("source", spec.source), ("sink", spec.sink)):
        if isinstance(part, BigQuerySource | BigQuerySink) and part.table is not None:
            dataset = Resource(kind="dataset", name=part.table.rpartition(".")[0])
            yield LocationCheck(resource=dataset, location=part.location or "", field=f"{field}.location")
    if isinstance(spec.source, BigQuerySource) and spec.source.table is not None:
        yield ExistsCheck(resource=Resource(kind="table", name=spec.source.table), field="source.table")


def _buckets(spec: JobSpec) -> dict[str, bool]:
    """Returns the buckets of a job, and whether each is written."""
    source, sink, runner, audit = spec.source, spec.sink, spec.runner, spec.safety.audit
    read = (source.uri if isinstance(source, FilesSource) else None, *(each.uri for each in spec.prompt.media))
    written = (
        sink.uri if isinstance(sink, FilesSink) else None,
        spec.state_uri,
        source.export_uri if isinstance(source, BigQuerySource) else None,
        runner.temp_uri if isinstance(runner, DataflowRunner) else None,
        audit.uri if isinstance(audit, FilesAudit) else None,
    )
    found = dict.fromkeys((_bucket(uri) for uri in read), False)
    found |= dict.fromkeys((_bucket(uri) for uri in written), True)
    return {name: is_written for name, is_written in found.items() if name}


def _bucket(uri: str | None) -> str:
    return urlsplit(uri).netloc if uri is not None and uri.startswith("gs://") else ""


def _payer(part: BigQuerySource | BigQuerySink, project: str) -> str:
    """Returns the project that runs the jobs of BigQuery."""
    return part.project or (part.table.partition(".")[0] if part.table else project)
