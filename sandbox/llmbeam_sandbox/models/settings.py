"""Settings of the emulated models, and their latency."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmbeam_sandbox.billing.tokens import TokenPrices
from llmbeam_sandbox.models.answers import Tokenizer, count_bytes
from llmbeam_sandbox.models.embedding.base import Separation
from llmbeam_sandbox.models.quota import Quota
from llmbeam_sandbox.models.skill import Skill

DEFAULT_INPUT_TOKEN_LIMIT = 1_048_576


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Time to first byte, log-normal around its mean, plus time per output token.

    Attributes:
        mean_seconds: Mean time to the first byte, in seconds, >= 0.
        sigma: Standard deviation of the underlying normal distribution; 0 means always `mean_seconds`.
        per_output_token_seconds: Time per token of the answer, in seconds, >= 0.

    Raises:
        ValueError: A value is negative or not finite.
    """

    mean_seconds: float = 0.0
    sigma: float = 0.0
    per_output_token_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mean_seconds", "sigma", "per_output_token_seconds"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"`{name}` must be a finite number >= 0; got {value!r}.")

    def first_byte_seconds(self, source: random.Random) -> float:
        """Returns a random time to the first byte, in seconds, with the mean `mean_seconds`."""
        if not self.mean_seconds or not self.sigma:
            return self.mean_seconds
        # The mean of a log-normal is exp(mu + sigma^2 / 2).
        return source.lognormvariate(math.log(self.mean_seconds) - self.sigma**2 / 2, self.sigma)

    def output_seconds(self, output_tokens: int) -> float:
        """Returns the time for `output_tokens`, in seconds."""
        return self.per_output_token_seconds * output_tokens


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Settings of the emulated models.

    Attributes:
        quota: Limits of each model, on Vertex AI's paths per location; without limit by default.
        location_quotas: Limits on Vertex AI's paths by location, in place of `quota`.
        latency: Duration of an answer; none by default.
        input_token_limit: Longest prompt that a model accepts, in tokens, >= 1.
        tokenizer: Returns the tokens of a text, and at least as many for a longer one; by default UTF-8 bytes / 4.
        openai_api_key: Key that OpenAI clients must send; None accepts every client.
        any_model: Whether models that are not in the catalogue (`catalog`) answer, too: with the OpenAI API all
            names, with the Gemini API those that begin with `gemini` or `gemma`. If not, they are not found.
        prices: Prices of tokens.
        min_cached_tokens: Minimum size of a cached content, in tokens.
        flex_shed_ratio: Share of the flex requests that are shed, drawn at random.
        has_flex: Whether flex requests are served at that tier; if not, they are served and billed as standard
            ones.
        priority_overflow_ratio: Share of the priority requests that are above the limit of that tier, drawn at
            random: they are served and billed as standard ones.
        skills: How well models answer, by name; others answer as `answers` says, each in its own way.
        separations: What the vectors of models that embed online say of the right answers, by name.
        cache_storage_usd: Price of the storage of a million cached tokens for 3,600 s, in USD.

    Raises:
        ValueError: `input_token_limit` is below 1, or a share is not within [0, 1].
    """

    quota: Quota = field(default_factory=Quota)
    location_quotas: Mapping[str, Quota] = field(default_factory=dict)
    latency: Latency = field(default_factory=Latency)
    input_token_limit: int = DEFAULT_INPUT_TOKEN_LIMIT
    tokenizer: Tokenizer = count_bytes
    openai_api_key: str | None = None
    any_model: bool = True
    prices: TokenPrices = field(default_factory=TokenPrices)
    min_cached_tokens: int = 2_048
    cache_storage_usd: float = 1.0
    flex_shed_ratio: float = 0.0
    has_flex: bool = True
    priority_overflow_ratio: float = 0.0
    skills: Mapping[str, Skill] = field(default_factory=dict)
    separations: Mapping[str, Separation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.input_token_limit < 1:
            raise ValueError(
                f"`ModelSettings.input_token_limit` must be >= 1 token; got {self.input_token_limit!r}."
            )
        for name in ("flex_shed_ratio", "priority_overflow_ratio"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ValueError(f"`ModelSettings.{name}` must be within [0, 1]; got {share!r}.")
