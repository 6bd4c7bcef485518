"""Settings of the emulated models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_llmbeam.sandbox.models.answers import Tokenizer, count_bytes
from airflow_provider_llmbeam.sandbox.models.latency import Latency
from airflow_provider_llmbeam.sandbox.models.quota import Quota

DEFAULT_INPUT_TOKEN_LIMIT = 1_048_576


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How the emulated models answer.

    Attributes:
        quota: Limits of each model, on Vertex AI's paths per location; without limit by default.
        location_quotas: Limits on Vertex AI's paths by location, in place of `quota`.
        latency: Duration of an answer; none by default.
        input_token_limit: Longest prompt that a model accepts, in tokens, >= 1.
        tokenizer: Returns the tokens of a text, and at least as many for a longer one; by default UTF-8 bytes / 4.
        openai_api_key: Key that OpenAI clients must send; None accepts every client.

    Raises:
        ValueError: `input_token_limit` is below 1.
    """

    quota: Quota = field(default_factory=Quota)
    location_quotas: Mapping[str, Quota] = field(default_factory=dict)
    latency: Latency = field(default_factory=Latency)
    input_token_limit: int = DEFAULT_INPUT_TOKEN_LIMIT
    tokenizer: Tokenizer = count_bytes
    openai_api_key: str | None = None

    def __post_init__(self) -> None:
        if self.input_token_limit < 1:
            raise ValueError(
                f"`ModelSettings.input_token_limit` must be >= 1 token; got {self.input_token_limit!r}."
            )
