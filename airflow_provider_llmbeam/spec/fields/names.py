"""Names and addresses of a spec: each type has a pattern, and words for the message of an error."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field


def _like(pattern: str, words: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):  # compiled at its first use: at import 28 cost 9,500 calls
            raise ValueError(f"must be {words}")
        return text

    return AfterValidator(check)


class Named(str):
    """A text by which a spec gets something done; see `spec.allowed`.

    Attributes:
        option: Option of `[llmbeam]` that allows those that no Dag file has.
    """

    __slots__ = ()
    option: ClassVar[str]


class Function(Named):
    """Path of a function that a job imports and calls."""

    __slots__ = ()
    option = "allowed_functions"


class Program(Named):
    """A program, container or job service that runs a job or a part of it."""

    __slots__ = ()
    option = "allowed_programs"


class Variable(Named):
    """Name of an environment variable with a secret."""

    __slots__ = ()
    option = "job_environment"


_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}"
_NAME_WORDS = "a name of at most 127 letters, digits and . _ -, beginning with a letter or a digit"
#: Directories below `state_uri` that lie beside those of the jobs, and belong to none.
SHARED_DIRECTORIES = ("cache", "conversations", "history", "rates")


def is_job_name(name: str) -> bool:
    """Returns whether a job can have a name."""
    return re.fullmatch(_NAME, name) is not None and name.lower() not in SHARED_DIRECTORIES


def _check_shared(name: str) -> str:
    if name.lower() in SHARED_DIRECTORIES:
        raise ValueError(
            f"must be none of {', '.join(SHARED_DIRECTORIES)}: directories that jobs share have these"
        )
    return name


def _check_labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
            raise ValueError(
                f"has a label {key!r}: {value!r}; both must be at most 63 of a-z, 0-9, _ and -, and the key must "
                "start with a letter"
            )
    return labels


def check_variable(name: str) -> Variable:
    """Validates the name of a variable that a job may read.

    Raises:
        ValueError: It is one of Airflow, which hold its keys and passwords.
    """
    if name.upper().startswith("AIRFLOW__"):
        raise ValueError("must not be a variable of Airflow's configuration, AIRFLOW__…: no job gets these")
    return Variable(name)


def _check_secrets(secrets: dict[str, str]) -> dict[str, str]:
    for name, secret in secrets.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"has {name!r}, which cannot be the name of an environment variable")
        if not re.fullmatch(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+", secret):
            # The value may be the secret itself: never quoted.
            raise ValueError(f"must name a secret for {name!r}: 'projects/…/secrets/…/versions/latest'")
    return {check_variable(name): secret for name, secret in secrets.items()}


#: Options of Beam that fields of a portable runner set.
_SET_BY_FIELDS = {
    *("runner", "job_name", "job_endpoint", "artifact_endpoint", "environment_type", "environment_config"),
    *("environment_option", "environment_options", "flink_master", "flink_version", "flink_job_server_jar"),
    *("flink_submit_uber_jar", "parallelism"),
}


def _check_options(options: dict[str, OptionValue]) -> dict[str, OptionValue]:
    for name in options:
        if name in _SET_BY_FIELDS:
            raise ValueError(f"has {name!r}, which another field of `runner` sets already")
    return programs_in(options)


def programs_in(options: dict[str, OptionValue]) -> dict[str, OptionValue]:
    """Returns options of Beam whose texts are programs: any of them may be one, as of `setup_file`.

    Their names do not tell: Beam's parser takes abbreviated ones.
    """
    found = dict(options)
    for name, value in options.items():
        if isinstance(value, str):
            found[name] = Program(value)
        elif isinstance(value, list):
            found[name] = [*map(Program, value)]
    return found


OptionValue = bool | int | float | str | list[str]
#: Pipeline options of Beam for a portable runner, by name.
BeamOptions = Annotated[dict[str, OptionValue], AfterValidator(_check_options)]
ClusterUrl = Annotated[
    str,
    AfterValidator(lambda url: url.rstrip("/")),
    _like(r"https?://[^/\s?#@]+(/[^\s?#]*)?", "the address of a REST API, e.g. 'http://flink-jobmanager:8081'"),
]
HostAndPort = Annotated[str, _like(r"[A-Za-z0-9._-]+:[0-9]{1,5}", "a host and a port, e.g. 'localhost:8099'")]
#: Its server decides what the workers run, which may be threads of the process that submits the job, and names the
#: files of this machine that it fetches.
JobService = Annotated[HostAndPort, AfterValidator(Program)]

JobName = Annotated[str, _like(_NAME, _NAME_WORDS), AfterValidator(_check_shared)]
CacheScope = Annotated[str, _like(_NAME, _NAME_WORDS)]
MetricName = Annotated[
    str,
    _like(
        r"[A-Za-z_][A-Za-z0-9_-]{0,99}", "a name of at most 100 letters, digits, _ and -, beginning with a letter"
    ),
]
FunctionPath = Annotated[
    str,
    _like(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", "the path of a function that can be imported, 'package.module:name'"),
    AfterValidator(Function),
]
ProgramName = Annotated[str, AfterValidator(Program)]
PersonalDataKind = Annotated[
    str, _like(r"[A-Z][A-Z0-9_]{0,31}", "a name of at most 32 capital letters, digits and _, e.g. 'CUSTOMER_ID'")
]
InfoType = Annotated[
    str, _like(r"[A-Z][A-Z0-9_]{0,39}", "a name of at most 40 capital letters, digits and _, e.g. 'PERSON_NAME'")
]

ProjectId = Annotated[
    str,
    _like(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]", "the id of a Google Cloud project, e.g. 'my-project'"),
]
Region = Annotated[
    str, _like(r"[a-z]+-[a-z]+[0-9]+", "a region of Google Cloud, e.g. 'europe-west1', without a zone")
]
SecretVersion = Annotated[
    str,
    _like(
        r"projects/[^/]+/secrets/[^/]+/versions/[^/]+", "a secret version, 'projects/…/secrets/…/versions/latest'"
    ),
]
#: Versions of secrets by the environment variables of workers that get their values.
EnvironmentSecrets = Annotated[dict[str, str], AfterValidator(_check_secrets)]
ServiceAccount = Annotated[str, _like(r"[^@\s]+@[^@\s]+", "the e-mail address of a service account")]
#: Labels of a resource or a request on Google Cloud.
Labels = Annotated[dict[str, str], AfterValidator(_check_labels)]
Network = Annotated[
    str, _like(r"projects/[^/]+/global/networks/[^/]+", "a network, 'projects/NUMBER/global/networks/NAME'")
]
VertexEndpoint = Annotated[
    str,
    _like(
        r"projects/[^/]+/locations/[a-z0-9-]+/endpoints/[^/]+",
        "an endpoint, 'projects/…/locations/…/endpoints/…'",
    ),
]
#: Method of an endpoint of Vertex AI that takes a chat.
ChatRoute = Literal["chat_completions", "raw_predict"]
ModelArmorTemplate = Annotated[
    str,
    _like(
        r"projects/[^/]+/locations/[a-z0-9-]+/templates/[^/]+",
        "a template of Model Armor, 'projects/…/locations/…/templates/…'",
    ),
]
KmsKey = Annotated[
    str,
    _like(
        r"projects/[^/]+/locations/[a-z0-9-]+/keyRings/[\w-]{1,63}/cryptoKeys/[\w-]{1,63}",
        "a key of Cloud KMS without a version, 'projects/…/locations/…/keyRings/…/cryptoKeys/…'",
    ),
]
BucketUri = Annotated[str, _like(r"gs://[^/]+.*", "an address on Cloud Storage, e.g. 'gs://my-bucket/temp'")]
TemplateUri = Annotated[
    str,
    _like(r"gs://[^/]+/.+", "a file on Cloud Storage, e.g. 'gs://my-bucket/template.json'"),
    AfterValidator(Program),
]

MachineType = Annotated[str, _like(r"[a-z0-9]+(-[a-z0-9]+)+", "a machine type, e.g. 'g2-standard-12'")]
AcceleratorType = Annotated[str, _like(r"[A-Z][A-Z0-9_]+", "an accelerator of Vertex AI, e.g. 'NVIDIA_L4'")]
CloudRunGpu = Annotated[str, _like(r"nvidia-[a-z0-9-]+", "a GPU of Cloud Run, e.g. 'nvidia-l4'")]
Memory = Annotated[str, _like(r"[1-9][0-9]*[GM]i", "a size such as '32Gi'")]

PostgresTable = Annotated[
    str, _like(r"[A-Za-z_][\w$]*(\.[A-Za-z_][\w$]*)?", "a table, 'answers' or 'schema.answers'")
]
MilvusCollection = Annotated[
    str,
    _like(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "a name of letters, digits and _, which does not begin with a digit"),
]
KafkaTopic = Annotated[
    str, _like(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", "a topic of Kafka: at most 249 letters, digits and . _ -")
]
PubSubTopic = Annotated[str, _like(r"projects/[^/]+/topics/[^/:]+", "a topic of Pub/Sub, 'projects/…/topics/…'")]
#: A topic of the queue that a stream reads.
QueueTopic = Annotated[
    str,
    _like(
        r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}|projects/[^/]+/topics/[^/:]+",
        "a topic of Kafka, at most 249 letters, digits and . _ -, or one of Pub/Sub, 'projects/…/topics/…'",
    ),
]
PubSubSubscription = Annotated[
    str,
    _like(r"projects/[^/]+/subscriptions/[^/:]+", "a subscription of Pub/Sub, 'projects/…/subscriptions/…'"),
]
EmbeddingTask = Annotated[str, _like(r"[A-Z][A-Z_]*", "a task of Gemini embeddings, e.g. 'RETRIEVAL_DOCUMENT'")]


#: Label of every resource on Google Cloud: name of the Airflow deployment that created it.
DEPLOYMENT_LABEL = "llmbeam-deployment"
#: Characters that labels of Google Cloud allow.
_PATTERN = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"

#: Name of a deployment; empty for a job that no Airflow started.
DeploymentName = Annotated[str, Field(pattern=rf"^({_PATTERN})?$")]


def is_deployment_name(text: str) -> bool:
    """Whether a text may be the name of a deployment: at most 40 of a-z, 0-9 and -, beginning with a letter."""
    return re.fullmatch(_PATTERN, text) is not None


FitUri = Annotated[
    str,
    _like(r"(.*/)?[0-9a-f]{32}\.json", "the address of a fit, '…/cascades/DIGEST.json', as the report has it"),
]
