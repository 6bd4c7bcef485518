"""The parts of a model handler that an author of a Beam pipeline may give as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel, plain_directory, without_user
from airflow_provider_llmbeam.spec.fields.names import EnvironmentSecrets
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model.generation import Embedding, Generation
from airflow_provider_llmbeam.spec.model.model import Model
from airflow_provider_llmbeam.spec.model.tier import RequestedTier
from airflow_provider_llmbeam.spec.prompt.schema_type import checked_schema, schema_of

Directory = Annotated[str, AfterValidator(without_user), AfterValidator(plain_directory)]


class HandlerParts(SpecModel):
    """The parts of a model handler, as values, see `LLMModelHandler`.

    Attributes:
        model: The model.
        generation: Parameters of the answer.
        limits: Quotas, timeouts and retries.
        batching: Batch size and length buckets.
        embedding: Parameters of vectors; `None` for texts.
        output_schema: JSON Schema of the answer.
        max_repairs: Maximum number of repeated requests for an answer that does not match it.
        prompt_of: Returns the prompt of an example.
        fingerprint_of: Returns the fingerprint of an example.
        oldest_at: Unix time; older answers are requested again.
        since: Unix time; older segments of the journal are not looked up.
        refused_since: Unix time; answers that were refused before are requested again.
        flex_until: Unix time from which on only the standard tier answers early enough; infinite by default.
        job: Job of the answers.
        awaits_cancellation: Whether whoever makes the stop file cancels the job then.
        service_tier: Tier that requests ask for.
        environment_secrets: Environment variables that are set before the client is opened, each from a secret.
        journal_uri: Directory of the journal; `None` for none.
        rates_uri: Directory of the rates that jobs have learned; `None` for that of the journal.
        stop_uri: File whose existence ends the job; `None` for none.
        progress_prefix: Beginning of the addresses of the counts of workers; `None` for none.
        upload_prefix: Beginning of the display names of uploads; `None` for no uploads.
    """

    model: Model
    generation: Generation
    limits: Limits
    batching: Batching
    embedding: Embedding | None
    output_schema: Annotated[Mapping[str, Any] | None, BeforeValidator(schema_of)]
    max_repairs: Annotated[int, Field(ge=0, le=5)]
    prompt_of: Callable[[Any], Any] | None
    fingerprint_of: Callable[[Any], Any] | None
    oldest_at: float
    since: float
    refused_since: float
    flex_until: Annotated[float, Field(ge=0, allow_inf_nan=True)]
    job: str
    awaits_cancellation: bool
    service_tier: RequestedTier
    environment_secrets: EnvironmentSecrets
    journal_uri: Directory | None
    rates_uri: Directory | None
    stop_uri: Annotated[str, AfterValidator(without_user)] | None
    progress_prefix: str | None
    upload_prefix: str | None

    _is_schema = field_validator("output_schema")(checked_schema)
