"""The one value that crosses from Airflow to Beam."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model import Generation, Model
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from airflow_provider_llmbeam.spec.sink import FilesSink
from airflow_provider_llmbeam.spec.source import FilesSource


class JobSpec(SpecModel):
    """What is asked for: rows, a prompt, a model, a place for the answers.

    It holds no secret: keys come from the environment (`GOOGLE_API_KEY`, `OpenAIModel.api_key_env`).

    Attributes:
        version: Of this format.
        name: Of the job; runs of the same name share a journal below `state_uri`.
        state_uri: Directory of the journal: answers already paid for. `None`: `.llmbeam/` below the sink.
    """

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$")]
    source: FilesSource
    prompt: PromptTemplate
    model: Model
    generation: Generation = Generation()
    limits: Limits = Limits()
    batching: Batching = Batching()
    sink: FilesSink
    state_uri: str | None = None

    @field_validator("state_uri")
    @classmethod
    def _directory(cls, state_uri: str | None) -> str | None:
        return state_uri if state_uri is None or state_uri.endswith("/") else f"{state_uri}/"

    @property
    def journal_uri(self) -> str:
        """Directory of this job's journal segments."""
        return f"{self.state_uri or f'{self.sink.uri}.llmbeam/'}{self.name}/journal/"

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
