"""The one value that crosses from Airflow to Beam."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import SpecModel
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

#: Parts of a prompt that have no place in a vector of its text.
_NOT_EMBEDDED = ("system", "output_schema", "media")
_MILVUS_FIELD = re.compile(r"(?!(vector|llmbeam_id)$)[A-Za-z_][A-Za-z0-9_]{0,254}$")


class JobSpec(SpecModel):
    """What is asked for: rows, a prompt, a model, a place for the answers.

    It holds no secret: keys come from the environment (`GOOGLE_API_KEY`, `OpenAIModel.api_key_env`), on Dataflow
    from Secret Manager (`DataflowRunner.environment_secrets`).

    Attributes:
        version: Of this format.
        name: Of the job; runs of the same name share a journal below `state_uri`.
        task: `generate` asks the model for a text; `embed` for a vector of the prompt's text.
        generation: Parameters of the text.
        embedding: Parameters of the vector; there with `embed` alone.
        cache: Shares answers with other jobs; `None`: only tries of this job share theirs.
        runner: Where the pipeline runs; by default in a process on this machine.
        state_uri: Directory of the journal: answers already paid for. `None`: `.llmbeam/` below a files sink.
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
    def _has_a_home(self) -> Self:
        if self.state_uri is None:
            if not isinstance(self.sink, FilesSink):
                raise ValueError(
                    f"needs `state_uri` with a sink of type {self.sink.type!r}: journal, dead letter and report "
                    "go there"
                )
            if self.cache is not None:
                raise ValueError("needs `state_uri` with `cache`: the answers that jobs share go there")
        if isinstance(self.source, BigQuerySource) and not self.export_uri.startswith("gs://"):
            raise ValueError("needs `source.export_uri`, or a `state_uri`, that starts with gs://")
        return self

    @model_validator(mode="after")
    def _rows_have_one_key(self) -> Self:
        if self.source.on_duplicate_key == "allow" and not isinstance(self.sink, FilesSink):
            raise ValueError(
                f"allows duplicate keys (`source.on_duplicate_key`), and a sink of type {self.sink.type!r} "
                "has one row per key"
            )
        return self

    @model_validator(mode="after")
    def _asks_for_one_thing(self) -> Self:
        if self.embedding is None:
            return self
        if self.task != "embed":
            raise ValueError("has `embedding`, which needs `task` to be 'embed'")
        given = [f"`prompt.{name}`" for name in _NOT_EMBEDDED if getattr(self.prompt, name) not in (None, ())]
        usual = Generation()
        given += [f"`generation.{name}`" for name, value in self.generation if value != getattr(usual, name)]
        if given:
            raise ValueError(
                f"embeds (`task`), which takes no {', '.join(given)}: the vector is that of the text of "
                "`prompt.template` alone"
            )
        if isinstance(self.model, OpenAIModel) and self.embedding.task_type is not None:
            raise ValueError(
                "has `embedding.task_type`, which the OpenAI API does not know: a model that wants to be told "
                "is told in `prompt.template`"
            )
        if isinstance(self.model, VertexEndpointModel):
            raise ValueError(
                "embeds (`task`), and a model of type 'vertex_endpoint' is asked for texts alone: take one of "
                "type 'gemini' or 'openai'"
            )
        if isinstance(self.model, GeminiModel) and re.match(r"gemini-(?!.*embedding)", self.model.name):
            raise ValueError(
                f"embeds (`task`), and `model.name` {self.model.name!r} writes texts: name an embedding model, "
                "e.g. 'gemini-embedding-001'"
            )
        return self

    @model_validator(mode="after")
    def _said_in_the_format(self) -> Self:
        if isinstance(self.model, VertexEndpointModel) and self.model.request_format != "chat":
            given = {"`prompt.media`": self.prompt.media, "`generation.stream`": self.generation.stream}
            if found := [field for field, value in given.items() if value]:
                raise ValueError(
                    f"has {' and '.join(found)}, which `model.request_format` {self.model.request_format!r} "
                    "cannot carry: take 'chat'"
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
    def _fits_a_collection(self) -> Self:
        if isinstance(self.sink, MilvusSink):
            if self.embedding is None:
                raise ValueError("has a sink of type 'milvus', which takes vectors: it needs `task` to be 'embed'")
            if odd := [column for column in self.source.key if not _MILVUS_FIELD.match(column)]:
                raise ValueError(
                    f"has a sink of type 'milvus', whose fields cannot be called {odd} (`source.key`): letters, "
                    "digits and _ are allowed, and `vector` and `llmbeam_id` are taken"
                )
        return self

    @model_validator(mode="after")
    def _within_reach_of_the_workers(self) -> Self:
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
                f"runs on Dataflow (`runner`), whose workers see no file of this machine, and {', '.join(local)} "
                "is one: name a place on Cloud Storage, gs://…"
            )
        if self.runner.temp_uri is None and not self.home_uri.startswith("gs://"):
            raise ValueError(
                "needs `runner.temp_uri`, or a `state_uri` that starts with gs://: Dataflow stages files there"
            )
        return self

    @model_validator(mode="after")
    def _workers_find_their_keys(self) -> Self:
        if isinstance(self.runner, DataflowRunner) and (
            missing := missing_worker_secrets(self.runner, self.model, self.sink)
        ):
            raise ValueError(missing)
        return self

    @property
    def home_uri(self) -> str:
        """Directory of what belongs to this job alone."""
        if self.state_uri is not None:
            return f"{self.state_uri}{self.name}/"
        return f"{self.output_uri}.llmbeam/{self.name}/"

    @property
    def output_uri(self) -> str:
        """Directory of the report and the dead letter, and of the answers of a files sink."""
        return self.sink.uri if isinstance(self.sink, FilesSink) else self.home_uri

    @property
    def staging_uri(self) -> str:
        """Directory of what is not published yet; on the filesystem of the output, where a rename is cheap."""
        if isinstance(self.sink, FilesSink):
            return f"{self.sink.uri}.llmbeam/{self.name}/staging/"
        return f"{self.home_uri}staging/"

    @property
    def journal_uri(self) -> str:
        """Directory of the journal segments, shared with others where there is a cache."""
        if self.cache is not None:
            return f"{self.state_uri}cache/{self.cache.scope}/"
        return f"{self.home_uri}journal/"

    @property
    def export_uri(self) -> str:
        """Directory that a BigQuery source is exported to, of this job alone."""
        given = self.source.export_uri if isinstance(self.source, BigQuerySource) else None
        return f"{given}{self.name}/" if given else f"{self.home_uri}export/"

    @property
    def environment_secrets(self) -> dict[str, str]:
        """Variables of the workers' environment, each from a secret; none where the job runs on this machine."""
        return self.runner.environment_secrets if isinstance(self.runner, DataflowRunner) else {}

    @property
    def temp_uri(self) -> str:
        """Directory that Dataflow stages files in."""
        given = self.runner.temp_uri if isinstance(self.runner, DataflowRunner) else None
        return given or f"{self.home_uri}dataflow/"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads a spec from JSON text.

        Raises:
            JobSpecError: Not JSON, or not a job spec.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise JobSpecError(f"The job spec is not JSON: {error}. Nothing was sent or billed.") from None
        return cls.parse(data)


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")
