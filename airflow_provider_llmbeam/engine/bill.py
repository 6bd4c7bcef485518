"""Billed tokens of replies, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.spec.facts import ASSUMED_PRIORITY_RATIO
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.model.tier import ServiceTier
from airflow_provider_llmbeam.spec.protocol.counts import NANO


class Bill(NamedTuple):
    """Billed tokens of one reply, or of several. An outcome has the same fields.

    Attributes:
        input_tokens: Input tokens.
        output_tokens: Output tokens, including thoughts.
        cached_tokens: Input tokens from the provider's cache, which `input_tokens` includes.
        cost_nano_usd: Cost in billionths of a US dollar; `None` if no price is known.
        audio_tokens: Input tokens of audio that are not from the cache, which `input_tokens` includes.
        estimated_tokens: Tokens of these that the server did not report: estimated from the length of the texts.
        reasoning_tokens: Output tokens of thoughts, if the server counts them; `output_tokens` includes them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_nano_usd: int | None = 0
    audio_tokens: int = 0
    estimated_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def of(
        cls,
        input_tokens: int,
        output_tokens: int,
        cached_tokens: int,
        price: Price | None,
        service_tier: ServiceTier = "standard",
        audio_tokens: int = 0,
        estimated_tokens: int = 0,
        reasoning_tokens: int = 0,
    ) -> Bill:
        """Returns the bill of one reply, valid or not, at the price of the tier that served it."""
        tokens = (input_tokens, output_tokens, cached_tokens)
        counts = (audio_tokens, estimated_tokens, reasoning_tokens)
        ratio = None if price is None else price.ratio_at(service_tier)
        if price is None or ratio is None:
            return cls(*tokens, None, *counts) if any(tokens) else NOTHING
        cost = price.cost_usd(*tokens, audio_tokens, tier_ratio=ratio)
        return cls(*tokens, round(cost * NANO), *counts)

    def plus(self, other: Bill) -> Bill:
        """Returns the bill of both."""
        costs = (self.cost_nano_usd, other.cost_nano_usd)
        return Bill(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            None if None in costs else sum(filter(None, costs)),
            self.audio_tokens + other.audio_tokens,
            self.estimated_tokens + other.estimated_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


def paid_for(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns the fields of an outcome that say what several have cost, in tokens, money and requests."""
    bills = (Bill(*(getattr(each, name) for name in Bill._fields)) for each in outcomes)
    return {
        **reduce(Bill.plus, bills, NOTHING)._asdict(),
        "attempts": sum(each.attempts for each in outcomes),
        "rejections": sum(each.rejections for each in outcomes),
        "rejected_at": tuple(at for each in outcomes for at in each.rejected_at),
        "sheds": sum(each.sheds for each in outcomes),
    }


def charged_nano_usd(bill: Bill | Outcome, price: Price | None) -> int:
    """Returns what a bill, or an outcome, counts for a budget, in billionths of a US dollar.

    That is its cost. A server may serve a request at the priority tier that did not ask for it: where the price of
    that tier is not known, it is the cost at `ASSUMED_PRIORITY_RATIO`.
    """
    if bill.cost_nano_usd is not None or price is None:
        return bill.cost_nano_usd or 0
    tokens = (bill.input_tokens, bill.output_tokens, bill.cached_tokens, bill.audio_tokens)
    return round(price.cost_usd(*tokens, tier_ratio=ASSUMED_PRIORITY_RATIO) * NANO)


#: The bill before the first reply.
NOTHING = Bill()
