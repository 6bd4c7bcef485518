"""The spec of a job: the one value that Airflow hands to Beam."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import (
    NOT_SHOWN,
    FieldFaultError,
    SpecModel,
    may_have_project,
    plain_directory,
    without_user,
)
from airflow_provider_llmbeam.spec.cache import Cache
from airflow_provider_llmbeam.spec.deployment import DeploymentName
from airflow_provider_llmbeam.spec.fields.names import JobName
from airflow_provider_llmbeam.spec.inference import Inference
from airflow_provider_llmbeam.spec.inference_rules import inference_fault, labels_fault
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model import (
    Embedding,
    GeminiModel,
    Generation,
    Model,
    OpenAIModel,
    VertexEndpointModel,
    key_variables,
)
from airflow_provider_llmbeam.spec.model.media import media_rules, template_fault
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.model.server import Server, server_of
from airflow_provider_llmbeam.spec.output import milvus_fault, output_problem, reads_own_dead_letter
from airflow_provider_llmbeam.spec.prompt import Prompt
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DirectRunner, Runner
from airflow_provider_llmbeam.spec.runner.worker_secrets import missing_worker_secrets
from airflow_provider_llmbeam.spec.sink import FilesSink, MilvusSink, PostgresSink, Sink
from airflow_provider_llmbeam.spec.source import BigQuerySource, FilesSource, Source

#: Fields of a prompt that do not apply to embeddings.
_NOT_EMBEDDED = ("system", "output_schema", "media")


class JobSpec(SpecModel):
    """A job: its source, prompt, model and sink.

    It holds no secrets: keys come from the environment (`GOOGLE_API_KEY`, `OpenAIModel.api_key_env`), on Dataflow
    from Secret Manager (`DataflowRunner.environment_secrets`).

    Attributes:
        version: Version of this format.
        name: Name of the job; runs of the same name share a journal below `state_uri`.
        deployment: Airflow deployment that runs the job; jobs of another one are neither found nor cancelled.
        owner: What the job is called from run to run: Dag, task and map index, set by the operator. It owns a
            files sink, see `FilesSink`. Empty: `name`.
        task: `generate` requests a text; `embed` a vector of the text of the prompt.
        source: Source of the rows.
        prompt: Templates of the prompt.
        model: The model.
        generation: Parameters of the text.
        embedding: Parameters of the vector, with `embed` only.
        inference: Online or batch inference, and the time by which the answers are needed.
        limits: Rates, retries, timeouts and budget.
        batching: Size of batches and length buckets.
        sink: Sink of the answers.
        cache: Cache shared with other jobs. `None`: only runs of this job share their answers.
        runner: Runner of the pipeline; by default a process on this machine.
        state_uri: Directory of the journal, which holds answers already paid for. `None`: `.llmbeam/` below a
            files sink.
    """

    version: Literal[1] = 1
    name: JobName
    deployment: DeploymentName = ""
    owner: Annotated[str, Field(max_length=1000)] = ""
    task: Literal["generate", "embed"] = "generate"
    source: Source
    prompt: Prompt
    model: Model
    generation: Generation = Generation()
    embedding: Embedding | None = None
    inference: Inference = Inference()
    limits: Limits = Limits()
    batching: Batching = Batching()
    sink: Sink
    cache: Cache | None = None
    runner: Runner = DirectRunner()
    state_uri: str | None = None

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
    def _has_state_directory(self) -> Self:
        if self.state_uri is None:
            if not isinstance(self.sink, FilesSink):
                raise FieldFaultError(
                    "state_uri",
                    f"this field is needed with a sink of type {self.sink.type!r}: journal, dead letter and "
                    "report are written there",
                    None,
                )
            if self.cache is not None:
                raise FieldFaultError(
                    "state_uri", "this field is needed with `cache`: the shared answers are written there", None
                )
        if isinstance(self.source, BigQuerySource) and not self.export_uri.startswith("gs://"):
            raise FieldFaultError(
                "source.export_uri",
                "must start with gs://, or `state_uri` must: BigQuery exports to Cloud Storage alone",
                self.source.export_uri,
                self.export_uri,
            )
        return self

    @model_validator(mode="after")
    def _keys_are_unique(self) -> Self:
        if self.source.on_duplicate_key == "allow" and not isinstance(self.sink, FilesSink):
            raise FieldFaultError(
                "source.on_duplicate_key",
                f"must be 'error' or 'dead_letter', as a sink of type {self.sink.type!r} has one row per key",
                self.source.on_duplicate_key,
            )
        return self

    @model_validator(mode="after")
    def _output_is_sound(self) -> Self:
        if (problem := output_problem(self)) is not None:
            raise ValueError(problem)
        if (fault := milvus_fault(self)) is not None:
            raise fault
        return self

    @model_validator(mode="after")
    def _model_supports_inference(self, info: ValidationInfo) -> Self:
        has_project = may_have_project(getattr(self.model, "project", None), info)
        if fault := inference_fault(self) or labels_fault(self, has_project=has_project):
            raise fault
        return self

    @model_validator(mode="after")
    def _task_matches_parameters(self) -> Self:
        if self.embedding is None:
            return self
        if self.task != "embed":
            raise FieldFaultError("task", "must be 'embed' with `embedding`", self.task)
        given = [f"`prompt.{name}`" for name in _NOT_EMBEDDED if getattr(self.prompt, name) not in (None, ())]
        usual = Generation()
        given += [f"`generation.{name}`" for name, value in self.generation if value != getattr(usual, name)]
        if given:
            raise FieldFaultError(
                "task", f"'embed' takes no {', '.join(given)}: only the text of `prompt.template` is embedded"
            )
        if isinstance(self.model, OpenAIModel) and self.embedding.task_type is not None:
            raise FieldFaultError(
                "embedding.task_type",
                "the OpenAI API does not support this field: for models that need it, write it into "
                "`prompt.template`",
                self.embedding.task_type,
            )
        if isinstance(self.model, VertexEndpointModel):
            raise FieldFaultError(
                "model.type", "must be 'gemini' or 'openai' to embed: others generate texts only", self.model.type
            )
        if isinstance(self.model, GeminiModel) and re.match(r"gemini-(?!.*embedding)", self.model.name):
            raise FieldFaultError(
                "model.name",
                "must be an embedding model to embed, e.g. 'gemini-embedding-001'; this one generates texts",
                self.model.name,
            )
        return self

    @model_validator(mode="after")
    def _request_format_supports_fields(self) -> Self:
        if isinstance(self.model, VertexEndpointModel) and self.model.request_format != "chat":
            given = {"`prompt.media`": self.prompt.media, "`generation.stream`": self.generation.stream}
            if found := [field for field, value in given.items() if value]:
                raise FieldFaultError(
                    "model.request_format",
                    f"must be 'chat' for {' and '.join(found)}",
                    self.model.request_format,
                )
        return self

    @model_validator(mode="after")
    def _server_takes_media(self) -> Self:
        reads_local, rules = isinstance(self.runner, DirectRunner), media_rules(self.model)
        for index, media in enumerate(self.prompt.media):
            if fault := template_fault(media.uri, media.mime_type, rules, reads_local=reads_local):
                raise ValueError(f"has `prompt.media.{index}.uri` {media.uri!r}, which {fault}")
        return self

    @model_validator(mode="after")
    def _budget_has_a_price(self) -> Self:
        if self.limits.budget_usd is not None and price_of(self.model, self.limits.price) is None:
            raise FieldFaultError(
                "limits.price",
                f"this field is needed with `limits.budget_usd`, as the price of {self.model.type} model "
                f"{self.model.name!r} is not known, e.g. {{'input_usd_per_million_tokens': 0.3, "
                "'output_usd_per_million_tokens': 2.5}",
                NOT_SHOWN,
                self.model.name,
            )
        return self

    @model_validator(mode="after")
    def _workers_can_reach_files(self) -> Self:
        if isinstance(self.runner, DirectRunner):
            return self
        places = {"state_uri": self.state_uri}
        if isinstance(self.source, FilesSource):
            places["source.uri"] = self.source.uri
        if isinstance(self.sink, FilesSink | MilvusSink):
            places["sink.uri"] = self.sink.uri
        local = {field: uri for field, uri in places.items() if uri is not None and _is_local(uri)}
        if local:
            named = " and ".join(f"`{field}` {uri!r}" for field, uri in local.items())
            raise FieldFaultError(
                next(iter(local)),
                f"must be on Cloud Storage, gs://…: workers of Dataflow (`runner`) cannot read {named} of this "
                "machine",
                NOT_SHOWN,
                *local.values(),
            )
        if self.runner.temp_uri is None and not self.home_uri.startswith("gs://"):
            raise FieldFaultError(
                "runner.temp_uri",
                "this field, or a `state_uri` that starts with gs://, is needed: Dataflow stages files there",
                None,
                self.home_uri,
            )
        return self

    @model_validator(mode="after")
    def _workers_have_their_keys(self, info: ValidationInfo) -> Self:
        needs_key = isinstance(self.model, GeminiModel) and not may_have_project(self.model.project, info)
        if isinstance(self.runner, DataflowRunner) and (
            missing := missing_worker_secrets(self.runner, self.sink, needs_api_key=needs_key)
        ):
            raise FieldFaultError("runner.environment_secrets", missing, NOT_SHOWN, self.model.name)
        return self

    @property
    def home_uri(self) -> str:
        """Directory of the state of this job."""
        if self.state_uri is not None:
            return f"{self.state_uri}{self.name}/"
        return f"{self.output_uri}.llmbeam/{self.name}/"

    @property
    def output_uri(self) -> str:
        """Directory of the report and the dead letter, and of the answers of a files sink."""
        return self.sink.uri if isinstance(self.sink, FilesSink) else self.home_uri

    @property
    def dead_letter_uri(self) -> str:
        """Address of the dead letter."""
        return f"{self.output_uri}dead_letter-00000-of-00001.jsonl"

    @property
    def report_uri(self) -> str:
        """Address of the report of the last run that published."""
        return f"{self.output_uri}report.json"

    @property
    def report_html_uri(self) -> str:
        """Address of the same report as a page."""
        return f"{self.output_uri}report.html"

    @property
    def skipped_uri(self) -> str:
        """Address of the report of a run that was skipped and published nothing."""
        return f"{self.home_uri}skipped.json"

    @property
    def owner_uri(self) -> str | None:
        """Address of the file that names the owner of a files sink."""
        return f"{self.sink.uri}.llmbeam/_owner.json" if isinstance(self.sink, FilesSink) else None

    @property
    def merges_by_key(self) -> bool:
        """Whether rows whose keys this run does not have stay, in the answers of a files sink and the dead letter.

        They also stay in the dead letter that the job reads itself, whatever the sink: they would be lost.
        """
        return getattr(self.sink, "on_existing", None) == "merge" or reads_own_dead_letter(self)

    @property
    def staging_uri(self) -> str:
        """Directory of unpublished files, on the filesystem of the output, where a rename is cheap."""
        if isinstance(self.sink, FilesSink):
            return f"{self.sink.uri}.llmbeam/{self.name}/staging/"
        return f"{self.home_uri}staging/"

    @property
    def journal_uri(self) -> str:
        """Directory of the journal segments of the model's server; with a cache it is shared with other jobs."""
        return f"{self._journal}{self.server.namespace(is_shared=self.cache is not None)}/"

    @property
    def journal_uris(self) -> tuple[str, ...]:
        """Directories whose answers are used: that of the model's server, and that of the providers.

        The latter also has the answers that other servers gave before each server had its own directory.
        """
        return tuple(dict.fromkeys((self.journal_uri, f"{self._journal}/")))

    @property
    def _journal(self) -> str:
        return f"{self.home_uri}journal" if self.cache is None else f"{self.state_uri}cache/{self.cache.scope}"

    @property
    def private_uris(self) -> tuple[str, ...]:
        """Directories that belong to this package: nobody else needs to read them."""
        below_sink = (f"{self.sink.uri}.llmbeam/",) if isinstance(self.sink, FilesSink) else ()
        shared = (f"{self.state_uri}cache/",) if self.cache is not None else ()
        return (*below_sink, *shared, *((self.home_uri,) if self.state_uri is not None else ()))

    @property
    def server(self) -> Server:
        """The server that answers the requests of this job in this process."""
        return server_of(self.model, os.environ)

    @property
    def stop_uri(self) -> str:
        """File whose existence ends the job: every worker records what is in flight, and sends nothing more."""
        return f"{self.home_uri}stop"

    @property
    def lease_uri(self) -> str:
        """File or object that names the process that runs the job."""
        return f"{self.home_uri}lease"

    @property
    def progress_uri(self) -> str:
        """Directory in which workers in other processes write their counts, while the job runs."""
        return f"{self.home_uri}progress/"

    @property
    def export_uri(self) -> str:
        """Directory of the exports of a BigQuery source, for this job only."""
        given = self.source.export_uri if isinstance(self.source, BigQuerySource) else None
        return f"{given}{self.name}/" if given else f"{self.home_uri}export/"

    @property
    def environment_secrets(self) -> dict[str, str]:
        """Environment variables of the workers, each from a secret; none if the job runs on this machine."""
        return self.runner.environment_secrets if isinstance(self.runner, DataflowRunner) else {}

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """Environment variables with secrets that the job reads by the names in this spec."""
        names = (*self.environment_secrets, *key_variables(self.model))
        match self.sink:
            case PostgresSink():
                return (*names, self.sink.dsn_env)
            case MilvusSink():
                return (*names, self.sink.token_env)
        return names

    @property
    def temp_uri(self) -> str:
        """Directory in which Dataflow stages files."""
        given = self.runner.temp_uri if isinstance(self.runner, DataflowRunner) else None
        return given or f"{self.home_uri}dataflow/"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads a spec from JSON text.

        Raises:
            JobSpecError: The text is not JSON, or not a job spec.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise JobSpecError(f"The job spec is not JSON: {error}. Nothing was sent or billed.") from None
        return cls.parse(data)


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")
