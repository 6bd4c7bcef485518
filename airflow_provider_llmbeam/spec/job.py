"""The one value that crosses from Airflow to Beam."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.cache import Cache
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model import Generation, Model
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from airflow_provider_llmbeam.spec.sink import FilesSink, Sink
from airflow_provider_llmbeam.spec.source import BigQuerySource, Source


class JobSpec(SpecModel):
    """What is asked for: rows, a prompt, a model, a place for the answers.

    It holds no secret: keys come from the environment (`GOOGLE_API_KEY`, `OpenAIModel.api_key_env`).

    Attributes:
        version: Of this format.
        name: Of the job; runs of the same name share a journal below `state_uri`.
        cache: Shares answers with other jobs; `None`: only tries of this job share theirs.
        max_dead_letter_ratio: The share of the rows that may end in the dead letter. Beyond it the job fails and
            the previous output stays; the answers are kept, so that another try pays for the bad rows alone.
        state_uri: Directory of the journal: answers already paid for. `None`: `.llmbeam/` below a files sink.
    """

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$")]
    source: Source
    prompt: PromptTemplate
    model: Model
    generation: Generation = Generation()
    limits: Limits = Limits()
    batching: Batching = Batching()
    sink: Sink
    cache: Cache | None = None
    max_dead_letter_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    state_uri: str | None = None

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
