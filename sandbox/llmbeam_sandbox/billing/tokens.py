"""The bill for tokens: every answer, by model and served tier, in nano-USD. No HTTP."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

Tier = Literal["standard", "flex", "priority", "batch", "provisioned"]
"""Tier at which an answer was served."""
Labels = tuple[tuple[str, str], ...]
"""Labels of a request or of its job, by key."""
TIERS: tuple[Tier, ...] = get_args(Tier)
DISCOUNT = 0.5
"""Price at the tiers `flex` and `batch` over that at the standard one."""
CACHED_SHARE = 0.1
"""Price of a cached token as a share of that of a standard one: the discounts do not add up, a surcharge does.

Source: the pages of Vertex AI on batch inference and context caching, and of OpenAI on priority processing.
"""
_NANO_USD_PER_TOKEN = 1000
"""Nano-USD per token at a price of 1 USD per million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """The price of a model.

    Attributes:
        input_usd: Price of a million input tokens at the standard tier, in USD, >= 0.
        output_usd: Price of a million output tokens at the standard tier, in USD, >= 0.
        audio_usd: Price of a million input tokens of audio at the standard tier, in USD, >= 0.
        priority_ratio: Price at the tier `priority` over that at the standard one, >= 1.

    Raises:
        ValueError: A price is negative, or the ratio is below 1.
    """

    input_usd: float = 0.30
    output_usd: float = 2.50
    priority_ratio: float = 1.8
    audio_usd: float = 1.00

    def __post_init__(self) -> None:
        if not self.priority_ratio >= 1:
            raise ValueError(f"`TokenPrice.priority_ratio` must be >= 1; got {self.priority_ratio!r}.")
        for name in ("input_usd", "output_usd", "audio_usd"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"`TokenPrice.{name}` must be >= 0; got {getattr(self, name)!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """The prices of tokens; at the tiers `flex` and `batch` they cost half of them, cached tokens a tenth.

    Attributes:
        default: Price of the models that `models` does not name.
        models: Price by model name.
    """

    default: TokenPrice = field(default_factory=TokenPrice)
    models: Mapping[str, TokenPrice] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCharge:
    """The charge for all answers of one model at one tier.

    Attributes:
        model: Model name of the requests.
        tier: Tier at which they were served.
        answers: Number of answers.
        input_tokens: Input tokens, cached ones included.
        cached_tokens: Those of them that were cached.
        output_tokens: Output tokens.
        audio_tokens: Input tokens of audio that were not cached.
    """

    model: str
    tier: Tier
    answers: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    audio_tokens: int = 0

    def nano_usd(self, price: TokenPrice) -> int:
        """Returns the cost at a price, in nano-USD, rounded."""
        if self.tier == "provisioned":
            return 0
        ratio = {"standard": 1.0, "priority": price.priority_ratio}.get(self.tier, DISCOUNT)
        usd = (
            (self.input_tokens - self.cached_tokens - self.audio_tokens) * price.input_usd * ratio
            + self.audio_tokens * price.audio_usd * ratio
            + self.cached_tokens * price.input_usd * CACHED_SHARE * max(ratio, 1.0)
            + self.output_tokens * price.output_usd * ratio
        )
        return round(usd * _NANO_USD_PER_TOKEN)


class TokenBill:
    """Everything charged for tokens since the start or the last reset. Safe to use from any thread.

    Args:
        prices: Prices of tokens.

    Attributes:
        on_read: Called before the bill is read: computes what is due by the clock.
        storage_nano_usd: Returns the cost of cached contents, in nano-USD.
    """

    def __init__(self, prices: TokenPrices) -> None:
        self.on_read: list[Callable[[], None]] = []
        self.storage_nano_usd: Callable[[], int] = int
        self._prices = prices
        self._lock = threading.Lock()
        # Once for all labels together ("", ""), and once for each label.
        self._charges: dict[tuple[tuple[str, str], str, Tier], TokenCharge] = {}

    @property
    def charges(self) -> list[TokenCharge]:
        """The charges, by model and tier."""
        return [charge for (name, _), charge in self._labelled() if not name]

    @property
    def nano_usd(self) -> int:
        """Sum of all charges, in nano-USD."""
        return sum(self.by_tier().values()) + self.storage_nano_usd()

    def by_tier(self) -> dict[Tier, int]:
        """Returns the sum of the charges of each tier, in nano-USD; 0 where there are none."""
        found: Counter[Tier] = Counter()
        for charge in self.charges:
            found[charge.tier] += self._cost(charge)
        return {tier: found[tier] for tier in TIERS}

    def by_label(self, name: str) -> dict[str, int]:
        """Returns the sum of the charges with each value of a label, in nano-USD."""
        found: Counter[str] = Counter()
        for (key, value), charge in self._labelled():
            if key == name:
                found[value] += self._cost(charge)
        return dict(found)

    def fields(self) -> dict[str, Any]:
        """Returns the bill for JSON."""
        lines = [asdict(charge) | {"nano_usd": self._cost(charge)} for charge in self.charges]
        by_tier, storage = self.by_tier(), self.storage_nano_usd()
        nano_usd = sum(by_tier.values()) + storage
        return {"lines": lines, "by_tier": by_tier, "storage_nano_usd": storage, "nano_usd": nano_usd}

    def add(
        self,
        model: str,
        tier: Tier,
        input_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        *,
        audio_tokens: int = 0,
        answers: int = 1,
        labels: Labels = (),
    ) -> None:
        """Charges for one answer, or for none; `input_tokens` include the cached ones and those of audio."""
        with self._lock:
            for label in (("", ""), *labels):
                charge = self._charges.get((label, model, tier)) or TokenCharge(model=model, tier=tier)
                self._charges[label, model, tier] = replace(
                    charge,
                    answers=charge.answers + answers,
                    input_tokens=charge.input_tokens + input_tokens,
                    cached_tokens=charge.cached_tokens + cached_tokens,
                    output_tokens=charge.output_tokens + output_tokens,
                    audio_tokens=charge.audio_tokens + audio_tokens,
                )

    def clear(self) -> None:
        """Removes all charges."""
        with self._lock:
            self._charges.clear()

    def _labelled(self) -> list[tuple[tuple[str, str], TokenCharge]]:
        for prepare in self.on_read:
            prepare()
        with self._lock:
            return [(key[0], self._charges[key]) for key in sorted(self._charges)]

    def _cost(self, charge: TokenCharge) -> int:
        return charge.nano_usd(self._prices.models.get(charge.model, self._prices.default))
