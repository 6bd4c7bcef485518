"""List prices of models: those of the package `genai-prices`, which has the price of each date."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

from genai_prices import Usage, calc_price
from genai_prices.types import TieredPrices

from airflow_provider_llmbeam.spec.model.price import Price

#: Version at the end of a name that the list does not have for every model, e.g. `-001` or `-preview-09-2025`.
_VERSION = re.compile(r"-(\d{3}|latest|(preview|exp)(-\d[\d-]*)?)$")

#: Fields of `genai-prices` by those of `Price`.
_RATES = {
    "input_usd_per_million_tokens": "input_mtok",
    "output_usd_per_million_tokens": "output_mtok",
    "cached_input_usd_per_million_tokens": "cache_read_mtok",
    "cache_write_usd_per_million_tokens": "cache_write_mtok",
}
_PRIORITY = {"service_tier": "priority"}
_Found = dict[str, Decimal | TieredPrices | None]


def list_price(provider: str, model: str, at: datetime | None = None) -> Price | None:
    """Returns the list price of text and audio; `None` for a model that is not in the list.

    Args:
        provider: Name of the provider in the list, e.g. `google`.
        model: Name of the model, also as a resource, e.g. `publishers/google/models/gemini-2.5-flash-001`.
        at: Time of the request; default: now.
    """
    at = at or datetime.now(UTC)
    name = re.sub(r"^(.*/)?models/", "", model)
    for each in (name, _VERSION.sub("", name)):
        calculate = partial(calc_price, Usage(), each, provider_id=provider, genai_request_timestamp=at)
        try:
            standard, priority = (calculate(price_context=context) for context in (None, _PRIORITY))
        except LookupError:
            continue
        found = vars(standard.model_price)
        return _price(found, _priority_ratio(found, vars(priority.model_price)))
    return None


def _priority_ratio(standard: _Found, priority: _Found) -> float | None:
    """Returns the price of the priority tier over that of the standard one; `None` if the list has no such price.

    The prices of long prompts are not compared: OpenAI serves these at the standard tier.
    Source: openai.com/api-priority-processing (2026-11)
    """
    usual, asked = (_at({name: found.get(name) for name in _RATES.values()}, 0) for found in (standard, priority))
    ratios = {round(dearer / price, 6) for name, price in usual.items() if price and (dearer := asked[name])}
    # Each model of the list has one ratio for all its tokens (genai-prices 0.2.3). Without a price of the tier,
    # the list returns that of the standard one.
    return ratios.pop() if len(ratios) == 1 and min(ratios) > 1 else None


def _price(found: _Found, priority_ratio: float | None) -> Price | None:
    rates = {field: found.get(name) for field, name in _RATES.items()}
    # A model that also answers with images or sounds has prices for them, and the usage of an answer is not read
    # by kind: a cost at the price of text would be too low.
    has_other_answers = any(name.startswith("output_") and name != "output_mtok" for name in found)
    if rates["input_usd_per_million_tokens"] is None or has_other_answers:
        return None
    # The list states no output price for a model that answers with vectors.
    rates["output_usd_per_million_tokens"] = rates["output_usd_per_million_tokens"] or Decimal(0)
    starts = {tier.start for rate in rates.values() if isinstance(rate, TieredPrices) for tier in rate.tiers}
    long = [{"above_input_tokens": start, **_at(rates, start + 1)} for start in sorted(starts)]
    return Price.parse(
        {
            **_at({**rates, "audio_input_usd_per_million_tokens": found.get("input_audio_mtok")}, 0),
            "long_prompts": long[0] if long else None,
            "priority_ratio": priority_ratio,
        }
    )


def _at(rates: _Found, input_tokens: int) -> dict[str, float | None]:
    """Returns the rates of a request with this number of input tokens."""
    found: dict[str, float | None] = {}
    for name, rate in rates.items():
        if isinstance(rate, TieredPrices):
            rate = next((tier.price for tier in reversed(rate.tiers) if input_tokens > tier.start), rate.base)
        found[name] = None if rate is None else float(rate)
    return found
