"""Whether an explicit cache of a head pays: its minimum size, and the price of its storage. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from airflow_provider_llmbeam.spec.model.price import Price

#: Minimum size of a cached content in tokens. Source: ai.google.dev/gemini-api/docs/caching (2026-09)
MIN_TOKENS_OF_GEMINI_2, MIN_TOKENS = 2_048, 4_096

#: Price of storage, in US dollars per million tokens and 3,600 s. Source: ai.google.dev/gemini-api/docs/pricing
#: (2026-09); the list of `genai-prices` has none.
_PRO_STORAGE_USD, _FLASH_STORAGE_USD, _REDUCED_STORAGE_USD = 4.50, 1.00, 0.50
_REDUCED_MODEL, _REDUCED_UNTIL = "gemini-3.8-flash", datetime(2027, 1, 1, tzinfo=UTC)


def min_tokens(model: str) -> int:
    """Returns the minimum size of a cached content of a model, in tokens."""
    return MIN_TOKENS_OF_GEMINI_2 if re.search(r"(^|/)gemini-2\b", model) else MIN_TOKENS


def storage_usd(model: str, tokens: int, seconds: float, at: datetime) -> float | None:
    """Returns the cost of storage in US dollars; `None` if the price of the model is not known.

    Args:
        model: Name of the model.
        tokens: Size of the cached content, in tokens.
        seconds: Time for which it is stored, in seconds.
        at: Time of its creation.
    """
    name = model.rpartition("/")[2]
    if not name.startswith("gemini-"):
        return None
    if name.startswith(_REDUCED_MODEL) and at < _REDUCED_UNTIL:
        rate = _REDUCED_STORAGE_USD
    elif "-flash" in name:
        rate = _FLASH_STORAGE_USD
    elif "-pro" in name:
        rate = _PRO_STORAGE_USD
    else:
        return None
    return tokens / 1e6 * seconds / 3600 * rate


def saved_usd(
    model: str, price: Price | None, *, tokens: int, requests: int, seconds: float, at: datetime
) -> float | None:
    """Returns what a cache saves in US dollars, below zero if it costs more; `None` if a price is not known.

    Args:
        model: Name of the model.
        price: Price of its tokens.
        tokens: Size of the head, in tokens, which are billed once more when the cache is made.
        requests: Number of requests that begin with the head.
        seconds: Time for which the cache is stored, in seconds.
        at: Time of its creation.
    """
    storage = storage_usd(model, tokens, seconds, at)
    if price is None or storage is None:
        return None
    inline = price.cost_usd(tokens, 0)
    return requests * (inline - price.cost_usd(tokens, 0, tokens)) - inline - storage


def pays(model: str, price: Price | None, *, tokens: int, requests: int, seconds: float, at: datetime) -> bool:
    """Returns whether a head is large enough for a cache that costs less than it saves; see `saved_usd`."""
    if tokens < min_tokens(model):
        return False
    saved = saved_usd(model, price, tokens=tokens, requests=requests, seconds=seconds, at=at)
    return saved is not None and saved > 0
