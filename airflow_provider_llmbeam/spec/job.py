"""The spec of a job: the one value that Airflow hands to Beam."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import SpecModel, may_have_project
from airflow_provider_llmbeam.spec.cache import Cache
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model import (
    Embedding,
    GeminiModel,
    Generation,
    Model,
    OpenAIModel,
    VertexEndpointModel,
)
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DirectRunner, Runner
from airflow_provider_llmbeam.spec.runner.worker_secrets import missing_worker_secrets
from airflow_provider_llmbeam.spec.sink import FilesSink, MilvusSink, Sink
from airflow_provider_llmbeam.spec.source import BigQuerySource, FilesSource, Source

#: Fields of a prompt that do not apply to embeddings.
_NOT_EMBEDDED = ("system", "output_schema", "media")
_MILVUS_FIELD = re.compile(r"(?!(vector|llmbeam_id)$)[A-Za-z_][A-Za-z0-9_]{0,254}$")


class JobSpec(SpecModel):
    """A job: its source, prompt, model and sink.

    It holds no secrets: keys come from the environment (`GOOGLE_API_KEY`, `OpenAIModel.api_key_env`), on Dataflow
    from Secret Manager (`DataflowRunner.environment_secrets`).

    Attributes:
        version: Version of this format.
        name: Name of the job; runs of the same name share a journal below `state_uri`.
        task: `generate` requests a text; `embed` a vector of the text of the prompt.
        source: Source of the rows.
        prompt: Templates of the prompt.
        model: The model.
        generation: Parameters of the text.
        embedding: Parameters of the vector, with `embed` only.
        limits: Rates, retries, timeouts and budget.
        batching: Size of batches and length buckets.
        sink: Sink of the answers.
        cache: Cache shared with other jobs. `None`: only runs of this job share their answers.
        runner: Runner of the pipeline; by default a process on this machine.
        state_uri: Directory of the journal, which holds answers already paid for. `None`: `.llmbeam/` below a
            files sink.
    """

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$")]
    task: Literal["generate", "embed"] = "generate"
    source: Source
    prompt: PromptTemplate
    model: Model
    generation: Generation = Generation()
    embedding: Embedding | None = None
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

    @field_validator("state_uri")
    @classmethod
    def _directory(cls, state_uri: str | None) -> str | None:
        return state_uri if state_uri is None or state_uri.endswith("/") else f"{state_uri}/"

    @model_validator(mode="after")
    def _has_state_directory(self) -> Self:
        if self.state_uri is None:
            if not isinstance(self.sink, FilesSink):
                raise ValueError(
                    f"needs `state_uri` with a sink of type {self.sink.type!r}: journal, dead letter and report "
                    "are written there"
                )
            if self.cache is not None:
                raise ValueError("needs `state_uri` with `cache`: the shared answers are written there")
        if isinstance(self.source, BigQuerySource) and not self.export_uri.startswith("gs://"):
            raise ValueError("needs `source.export_uri`, or a `state_uri`, that starts with gs://")
        return self

    @model_validator(mode="after")
    def _keys_are_unique(self) -> Self:
        if self.source.on_duplicate_key == "allow" and not isinstance(self.sink, FilesSink):
            raise ValueError(
                f"allows duplicate keys (`source.on_duplicate_key`), and a sink of type {self.sink.type!r} "
                "has one row per key"
            )
        return self

    @model_validator(mode="after")
    def _task_matches_parameters(self) -> Self:
        if self.embedding is None:
            return self
        if self.task != "embed":
            raise ValueError("has `embedding`, which needs `task` to be 'embed'")
        given = [f"`prompt.{name}`" for name in _NOT_EMBEDDED if getattr(self.prompt, name) not in (None, ())]
        usual = Generation()
        given += [f"`generation.{name}`" for name, value in self.generation if value != getattr(usual, name)]
        if given:
            raise ValueError(
                f"embeds (`task`), which takes no {', '.join(given)}: only the text of `prompt.template` is "
                "embedded"
            )
        if isinstance(self.model, OpenAIModel) and self.embedding.task_type is not None:
            raise ValueError(
                "has `embedding.task_type`, which the OpenAI API does not support: for models that need it, "
                "write it into `prompt.template`"
            )
        if isinstance(self.model, VertexEndpointModel):
            raise ValueError(
                "embeds (`task`), and a model of type 'vertex_endpoint' generates texts only: use one of "
                "type 'gemini' or 'openai'"
            )
        if isinstance(self.model, GeminiModel) and re.match(r"gemini-(?!.*embedding)", self.model.name):
            raise ValueError(
                f"embeds (`task`), and `model.name` {self.model.name!r} generates texts: use an embedding model, "
                "e.g. 'gemini-embedding-001'"
            )
        return self

    @model_validator(mode="after")
    def _request_format_supports_fields(self) -> Self:
        if isinstance(self.model, VertexEndpointModel) and self.model.request_format != "chat":
            given = {"`prompt.media`": self.prompt.media, "`generation.stream`": self.generation.stream}
            if found := [field for field, value in given.items() if value]:
                raise ValueError(
                    f"has {' and '.join(found)}, which `model.request_format` {self.model.request_format!r} "
                    "does not support: use 'chat'"
                )
        return self

    @model_validator(mode="after")
    def _budget_has_a_price(self) -> Self:
        if self.limits.budget_usd is not None and price_of(self.model, self.limits.price) is None:
            raise ValueError(
                f"has `limits.budget_usd`, and the price of {self.model.type} model {self.model.name!r} is not "
                "known: set `limits.price`, e.g. {'input_usd_per_million_tokens': 0.3, "
                "'output_usd_per_million_tokens': 2.5}"
            )
        return self

    @model_validator(mode="after")
    def _fits_milvus(self) -> Self:
        if isinstance(self.sink, MilvusSink):
            if self.embedding is None:
                raise ValueError(
                    "has a sink of type 'milvus', which stores vectors: it needs `task` to be 'embed'"
                )
            if odd := [column for column in self.source.key if not _MILVUS_FIELD.match(column)]:
                raise ValueError(
                    f"has a sink of type 'milvus', whose fields cannot be called {odd} (`source.key`): letters, "
                    "digits and _ are allowed, and `vector` and `llmbeam_id` are taken"
                )
        return self

    @model_validator(mode="after")
    def _workers_can_reach_files(self) -> Self:
        if isinstance(self.runner, DirectRunner):
            return self
        places = {"`state_uri`": self.state_uri}
        if isinstance(self.source, FilesSource):
            places["`source.uri`"] = self.source.uri
        if isinstance(self.sink, FilesSink | MilvusSink):
            places["`sink.uri`"] = self.sink.uri
        local = [f"{field} {uri!r}" for field, uri in places.items() if uri is not None and _is_local(uri)]
        if local:
            raise ValueError(
                "runs on Dataflow (`runner`), whose workers cannot read files of this machine, and "
                f"{', '.join(local)} is one: use a location on Cloud Storage, gs://…"
            )
        if self.runner.temp_uri is None and not self.home_uri.startswith("gs://"):
            raise ValueError(
                "needs `runner.temp_uri`, or a `state_uri` that starts with gs://: Dataflow stages files there"
            )
        return self

    @model_validator(mode="after")
    def _workers_have_their_keys(self, info: ValidationInfo) -> Self:
        needs_key = isinstance(self.model, GeminiModel) and not may_have_project(self.model.project, info)
        if isinstance(self.runner, DataflowRunner) and (
            missing := missing_worker_secrets(self.runner, self.sink, needs_api_key=needs_key)
        ):
            raise ValueError(missing)
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
    def staging_uri(self) -> str:
        """Directory of unpublished files, on the filesystem of the output, where a rename is cheap."""
        if isinstance(self.sink, FilesSink):
            return f"{self.sink.uri}.llmbeam/{self.name}/staging/"
        return f"{self.home_uri}staging/"

    @property
    def journal_uri(self) -> str:
        """Directory of the journal segments; with a cache it is shared with other jobs."""
        if self.cache is not None:
            return f"{self.state_uri}cache/{self.cache.scope}/"
        return f"{self.home_uri}journal/"

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
        except ValueError as error:
            raise JobSpecError(f"The job spec is not JSON: {error}. Nothing was sent or billed.") from None
        return cls.parse(data)


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")
