"""Prices of tokens."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.model.model import Model

_UsdPerMillion = Annotated[float, Field(ge=0)]


class Price(SpecModel):
    """Price of tokens in US dollars, independent of the length of a prompt.

    Attributes:
        input_usd_per_million_tokens: Price of input tokens.
        output_usd_per_million_tokens: Price of output tokens, thoughts included; a vector has none.
    """

    input_usd_per_million_tokens: _UsdPerMillion
    output_usd_per_million_tokens: _UsdPerMillion

    def cost_usd(self, input_tokens: int, output_tokens: int) -> float:
        """Returns the cost of these tokens, in US dollars."""
        return (
            input_tokens * self.input_usd_per_million_tokens + output_tokens * self.output_usd_per_million_tokens
        ) / 1e6


def _usd(per_million_in: float, per_million_out: float) -> Price:
    return Price(
        input_usd_per_million_tokens=per_million_in,
        output_usd_per_million_tokens=per_million_out,
    )


# List prices of standard paid requests with text, as quoted by public pages of 2026-10 from
# https://ai.google.dev/gemini-api/docs/pricing; not compared with that page itself. What is agreed with Google,
# batch mode, cached input, grounding and audio are not in them. Of the Pro models it is the price of prompts of up
# to 200,000 tokens; longer ones cost twice as much for input and 1.5 times for output. Of Gemini 3.8 Flash it is
# the price from 2027 on; until then half of it is billed. Embedding models that are billed by the character, such
# as text-embedding-005 on Vertex AI, have none.
_LIST_PRICES = {
    "gemini-3.8-flash": _usd(1.50, 7.50),
    "gemini-3.5-flash": _usd(1.50, 9.00),
    "gemini-3.5-flash-lite": _usd(0.30, 2.50),
    "gemini-3.1-pro": _usd(2.00, 12.00),
    "gemini-3.1-flash-lite": _usd(0.25, 1.50),
    "gemini-3-flash": _usd(0.50, 3.00),
    "gemini-2.5-pro": _usd(1.25, 10.00),
    "gemini-2.5-flash": _usd(0.30, 2.50),
    "gemini-2.5-flash-lite": _usd(0.10, 0.40),
    "gemini-embedding-2": _usd(0.20, 0.0),
    "gemini-embedding-001": _usd(0.15, 0.0),
}
#: E.g. `-001` or `-preview-09-2025`; not `-lite`, `-image` or `-preview-tts`, which are models of their own.
_VERSION = re.compile(r"-(\d{3}|latest|(preview|exp)(-\d[\d-]*)?)$")
_FREE = _usd(0.0, 0.0)


def price_of(model: Model, override: Price | None = None) -> Price | None:
    """Returns the price of the tokens of a model.

    Args:
        model: The model.
        override: Price given by the user, which takes precedence over the list price.

    Returns:
        `None` if it is not known, as for a tuned model or a self-hosted server.
    """
    if override is not None:
        return override
    match model.type:
        case "gemini":
            name = re.sub(r"^(.*/)?models/", "", model.name)
            return _LIST_PRICES.get(name) or _LIST_PRICES.get(_VERSION.sub("", name))
        case "echo":
            return _FREE
        case "openai" | "vertex_endpoint":  # a self-hosted server is billed by the hour
            return None
