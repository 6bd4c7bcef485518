"""Prices of tokens."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.facts import TIER_RATIOS
from airflow_provider_llmbeam.spec.model.tier import ServiceTier

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.model.model import Model

_UsdPerMillion = Annotated[float, Field(ge=0)]


class _Rates(SpecModel):
    input_usd_per_million_tokens: _UsdPerMillion
    output_usd_per_million_tokens: _UsdPerMillion
    cached_input_usd_per_million_tokens: _UsdPerMillion | None = None
    cache_write_usd_per_million_tokens: _UsdPerMillion | None = None


class LongPromptPrice(_Rates):
    """Price of all tokens of a request whose prompt is long.

    Attributes:
        above_input_tokens: Number of input tokens that a prompt must exceed.
        input_usd_per_million_tokens: Price of input tokens.
        output_usd_per_million_tokens: Price of output tokens.
        cached_input_usd_per_million_tokens: Price of input tokens from the provider's cache; default: that of
            input tokens.
        cache_write_usd_per_million_tokens: Price of input tokens written to that cache; default: that of input
            tokens.
    """

    above_input_tokens: Annotated[int, Field(ge=1)]


class Price(_Rates):
    """Price of tokens at the standard tier, in US dollars.

    Attributes:
        input_usd_per_million_tokens: Price of input tokens.
        output_usd_per_million_tokens: Price of output tokens, thoughts included; a vector has none.
        cached_input_usd_per_million_tokens: Price of input tokens that the provider has read from its cache;
            default: that of input tokens.
        cache_write_usd_per_million_tokens: Price of input tokens that the provider has written to its cache, for
            Claude; default: that of input tokens.
        audio_input_usd_per_million_tokens: Price of input tokens of audio; default: that of input tokens.
        long_prompts: Price of requests with a long prompt; default: the same.
        priority_ratio: Price of all these tokens at the priority tier over that at the standard tier, e.g. 1.8;
            `None` if it is not known.
    """

    audio_input_usd_per_million_tokens: _UsdPerMillion | None = None
    long_prompts: LongPromptPrice | None = None
    priority_ratio: Annotated[float, Field(ge=1)] | None = None

    def ratio_at(self, tier: ServiceTier) -> float | None:
        """Returns the price of tokens at a tier over that at the standard tier; `None` if it is not known."""
        return self.priority_ratio if tier == "priority" else TIER_RATIOS[tier]

    def cost_usd(
        self,
        input_tokens: float,
        output_tokens: float,
        cached_tokens: float = 0,
        audio_tokens: float = 0,
        cache_write_tokens: float = 0,
        *,
        tier_ratio: float = 1.0,
    ) -> float:
        """Returns the cost of one request, or the mean cost of many, in US dollars.

        Args:
            input_tokens: Input tokens, including those from and to the provider's cache and those of audio.
            output_tokens: Output tokens.
            cached_tokens: Input tokens from the provider's cache. The discounts are not added: that of the cache
                takes precedence over that of batch inference. A surcharge is, as each price of the priority tier
                has the same ratio. Sources:
                docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/batch-prediction-gemini,
                openai.com/api-priority-processing (2026-11)
            audio_tokens: Input tokens of audio that are not from the cache.
            cache_write_tokens: Input tokens written to the provider's cache.
            tier_ratio: Price of the other tokens over that of the standard tier.
        """
        long = self.long_prompts
        rates: _Rates = self if long is None or input_tokens <= long.above_input_tokens else long
        cached = rates.cached_input_usd_per_million_tokens
        cached = rates.input_usd_per_million_tokens if cached is None else cached
        audio = self.audio_input_usd_per_million_tokens
        audio = rates.input_usd_per_million_tokens if audio is None else audio
        write = rates.cache_write_usd_per_million_tokens
        write = rates.input_usd_per_million_tokens if write is None else write
        return (
            (input_tokens - cached_tokens - audio_tokens - cache_write_tokens)
            * rates.input_usd_per_million_tokens
            * tier_ratio
            + audio_tokens * audio * tier_ratio
            + cache_write_tokens * write * tier_ratio
            + cached_tokens * min(cached * max(tier_ratio, 1.0), rates.input_usd_per_million_tokens * tier_ratio)
            + output_tokens * rates.output_usd_per_million_tokens * tier_ratio
        ) / 1e6


_FREE = Price(input_usd_per_million_tokens=0.0, output_usd_per_million_tokens=0.0)


def price_of(model: Model, override: Price | None = None, at: datetime | None = None) -> Price | None:
    """Returns the price of the tokens of a model.

    Args:
        model: The model.
        override: Price given by the user, which takes precedence over the list price.
        at: Time of the requests; default: now.

    Returns:
        `None` if it is not known, as for a tuned model or a self-hosted server.
    """
    if override is not None:
        return override
    if model.type in ("echo", "distilled"):
        return _FREE
    if model.api.price_list is None:
        return None
    # Imported here: it takes 0.5 s of CPU time, and a Dag file without a budget needs no price.
    from airflow_provider_llmbeam.spec.model.list_price import list_price

    return list_price(model.api.price_list, model.name, at)
