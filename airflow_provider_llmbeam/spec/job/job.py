"""The spec of a job: the one value that Airflow hands to Beam."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.alerts import Alerts
from airflow_provider_llmbeam.spec.base import (
    SpecModel,
    may_have_project,
    plain_directory,
    without_user,
)
from airflow_provider_llmbeam.spec.cache import Cache
from airflow_provider_llmbeam.spec.cascade import Cascade, stage_fault
from airflow_provider_llmbeam.spec.conversation import Conversation
from airflow_provider_llmbeam.spec.fields.names import DeploymentName, JobName, KmsKey
from airflow_provider_llmbeam.spec.inference import Inference
from airflow_provider_llmbeam.spec.job.output_rules import reads_own_dead_letter
from airflow_provider_llmbeam.spec.job.paths import JobPaths
from airflow_provider_llmbeam.spec.job.rules import job_fault
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model import (
    Embedding,
    Generation,
    Model,
)
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from airflow_provider_llmbeam.spec.model.server import Server, server_of
from airflow_provider_llmbeam.spec.prompt import Prompt
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DirectRunner, Runner
from airflow_provider_llmbeam.spec.safety import AirflowRun, Safety
from airflow_provider_llmbeam.spec.sink import OUTPUT_COLUMNS, KafkaSink, MilvusSink, PostgresSink, Sink
from airflow_provider_llmbeam.spec.source import KafkaSource, Source
from airflow_provider_llmbeam.spec.stream import StreamOptions
from airflow_provider_llmbeam.spec.traces import Traces


class JobSpec(SpecModel):
    """A job: its source, prompt, model and sink.

    It says what is asked, and nothing of how. An operator or the command line parses it, the process of the job
    reads it again as JSON, and `pipeline.build` makes the Beam graph of it, whose `JobHandler` gets the prompts
    answered.

    It holds no secrets: keys come from the environment (`GOOGLE_API_KEY`, `OpenAIModel.api_key_env`), on Dataflow
    from Secret Manager (`DataflowRunner.environment_secrets`).

    Attributes:
        version: Version of this format.
        name: Name of the job; runs of the same name share a journal below `state_uri`.
        deployment: Airflow deployment that runs the job; jobs of another one are neither found nor cancelled.
        owner: What the job is called from run to run: Dag, task and map index, set by the operator. It owns a
            files sink, see `FilesSink`. Empty: `name`.
        airflow_run: Task instance that runs the job, set by the operator; for the audit.
        trace_id: Trace of that task instance, set by the operator; 32 hexadecimal digits, empty without one.
        task: `generate` requests a text; `embed` a vector of the text of the prompt.
        source: Source of the rows.
        prompt: Templates of the prompt.
        model: The model.
        generation: Parameters of the text.
        embedding: Parameters of the vector, with `embed` only.
        cascade: Cheaper models that are asked before `model`, which answers only what they might answer
            differently. `None`: `model` answers every row.
        conversation: Rows of one key that are asked in order, each with its history. `None`: every row by itself.
        inference: Online or batch inference, and the time by which the answers are needed.
        limits: Rates, retries, timeouts and budget.
        batching: Size of batches and length buckets.
        sink: Sink of the answers.
        sinks: Further sinks of the same answers, for `llmbeam stream` alone: of types `kafka`, `milvus` and
            `postgres`, at most one of them `kafka`.
        alerts: What raises an alert while the job runs, and when it has ended.
        traces: Which rows are spans of the job's trace.
        stream: Latency, limits and topics of a resident worker, see `llmbeam stream`.
        safety: What protects the people whose data is sent, and records who sent it.
        cache: Cache shared with other jobs. `None`: only runs of this job share their answers.
        runner: Runner of the pipeline; by default a process on this machine.
        state_uri: Directory of the journal, which holds answers already paid for. `None`: `.llmbeam/` below a
            files sink.
        kms_key_name: Key of Cloud KMS that encrypts what the job makes on Google Cloud,
            `projects/…/locations/…/keyRings/…/cryptoKeys/…`, see docs/reference/encryption.md. `None`: that of the
            Airflow connection, if it has one.
    """

    version: Literal[1] = 1
    name: JobName
    deployment: DeploymentName = ""
    owner: Annotated[str, Field(max_length=1000)] = ""
    airflow_run: AirflowRun | None = None
    trace_id: Annotated[str, Field(pattern="^([0-9a-f]{32})?$")] = ""
    task: Literal["generate", "embed"] = "generate"
    source: Source
    prompt: Prompt
    model: Model
    generation: Generation = Generation()
    embedding: Embedding | None = None
    cascade: Cascade | None = None
    conversation: Conversation | None = None
    inference: Inference = Inference()
    limits: Limits = Limits()
    batching: Batching = Batching()
    sink: Sink
    sinks: Annotated[tuple[Sink, ...], Field(max_length=10)] = ()
    alerts: Alerts = Alerts()
    traces: Traces = Traces()
    stream: StreamOptions = StreamOptions()
    safety: Safety = Safety()
    cache: Cache | None = None
    runner: Runner = DirectRunner()
    state_uri: str | None = None
    kms_key_name: KmsKey | None = None

    @model_validator(mode="before")
    @classmethod
    def _embedding_by_default(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("task") == "embed" and data.get("embedding") is None:
            return {**data, "embedding": Embedding()}
        return data

    _no_password = field_validator("state_uri")(without_user)

    @field_validator("state_uri")
    @classmethod
    def _directory(cls, state_uri: str | None) -> str | None:
        return None if state_uri is None else plain_directory(state_uri)

    @model_validator(mode="after")
    def _parts_match(self, info: ValidationInfo) -> Self:
        def find_fault(job: JobSpec) -> ValueError | None:
            return job_fault(job, has_project=may_have_project(job.model.project, info))

        if fault := find_fault(self) or stage_fault(self, find_fault):
            raise fault
        return self

    @property
    def max_output_tokens(self) -> int:
        """Maximum length of an answer, in tokens; 0 if the answers are vectors."""
        return 0 if self.embedding is not None else self.generation.max_output_tokens

    @property
    def paths(self) -> JobPaths:
        """The addresses of the job."""
        return JobPaths(self)

    @property
    def merges_by_key(self) -> bool:
        """Whether rows whose keys this run does not have stay, in the answers of a files sink and the dead letter.

        They also stay in the dead letter that the job reads itself, whatever the sink: they would be lost.
        """
        return getattr(self.sink, "on_existing", None) == "merge" or reads_own_dead_letter(self)

    @property
    def sinks_by_field(self) -> dict[str, Sink]:
        """All sinks, by the fields that name them: `sink`, `sinks.0` and so on."""
        return {"sink": self.sink, **{f"sinks.{number}": sink for number, sink in enumerate(self.sinks)}}

    @property
    def models(self) -> tuple[Model, ...]:
        """The models that the job asks: its own, those of its cascade and its sinks, and that of its guard."""
        moderation = self.safety.moderation
        stages = () if self.cascade is None else self.cascade.models
        guards = () if moderation is None else (moderation.model,)
        vectors = (getattr(sink, "embed", None) for sink in self.sinks_by_field.values())
        return (self.model, *stages, *guards, *(each.model for each in vectors if each is not None))

    def fingerprinter(self) -> Fingerprinter:
        """Returns what computes the fingerprints of the prompts of this job."""
        return Fingerprinter(self.model, self.generation, self.prompt.output_schema, self.embedding)

    @property
    def detail_columns(self) -> tuple[str, ...]:
        """Columns of an output row with what is known of its answer, and what other fields of the job ask for."""
        moderation = self.safety.moderation
        asked = (*self.generation.extra_columns, *(() if moderation is None else moderation.extra_columns))
        asked = asked if self.cascade is None else (*asked, "answered_by")
        return (*(OUTPUT_COLUMNS[1:] if self.sink.details else ()), *(f"llmbeam_{name}" for name in asked))

    @property
    def server(self) -> Server:
        """The server that answers the requests of this job in this process."""
        return server_of(self.model, os.environ)

    @property
    def environment_secrets(self) -> dict[str, str]:
        """Environment variables of the workers, each from a secret; none if the job runs on this machine."""
        return self.runner.environment_secrets if isinstance(self.runner, DataflowRunner) else {}

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """Environment variables with secrets that the job has by the names in this spec."""
        return (*self.environment_secrets, *self.read_variables)

    @property
    def read_variables(self) -> tuple[str, ...]:
        """Environment variables whose secrets the job itself reads."""
        keys = (name for model in self.models for name in model.api.secret_variables)
        privacy = self.safety.privacy
        names = (*keys, *(() if privacy is None else (privacy.key_env,)))
        if isinstance(self.source, KafkaSource):
            names = (*names, self.source.config_env)
        for sink in self.sinks_by_field.values():
            match sink:
                case PostgresSink():
                    names = (*names, sink.dsn_env)
                case MilvusSink():
                    names = (*names, sink.token_env)
                case KafkaSink():
                    names = (*names, sink.config_env)
        return names

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Returns the JSON Schema of a spec, whose fields have their full forms, e.g. a list for one key column.

        Rules between fields are not in it: `llmbeam check` knows them.
        """
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cls.model_json_schema()}

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads a spec from JSON text.

        Raises:
            JobSpecError: The text is not JSON, or not a job spec.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise JobSpecError(f"The job spec is not JSON: {error}.") from None
        return cls.parse(data)
