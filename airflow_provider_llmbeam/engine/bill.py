"""Billed tokens of replies, and their cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS, Tokens
from airflow_provider_llmbeam.spec.facts import ASSUMED_PRIORITY_RATIO
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.model.tier import ServiceTier
from airflow_provider_llmbeam.spec.protocol.counts import NANO


class Bill(NamedTuple):
    """Billed tokens of one reply, or of several, and their cost. An outcome has the same fields.

    Attributes:
        tokens: The tokens.
        cost_nano_usd: Cost in billionths of a US dollar; `None` if no price is known.
    """

    tokens: Tokens = NO_TOKENS
    cost_nano_usd: int | None = 0

    @classmethod
    def of(cls, tokens: Tokens, price: Price | None, service_tier: ServiceTier = "standard") -> Bill:
        """Returns the bill of one reply, valid or not, at the price of the tier that served it."""
        ratio = None if price is None else price.ratio_at(service_tier)
        if price is None or ratio is None:
            return cls(tokens, None) if any(tokens) else NOTHING
        return cls(tokens, round(price.cost_usd(*tokens.priced, tier_ratio=ratio) * NANO))

    def plus(self, other: Bill) -> Bill:
        """Returns the bill of both."""
        costs = (self.cost_nano_usd, other.cost_nano_usd)
        return Bill(self.tokens.plus(other.tokens), None if None in costs else sum(filter(None, costs)))


def paid_for(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns the fields of an outcome that say what several have cost, in tokens, money and requests."""
    bills = (Bill(each.tokens, each.cost_nano_usd) for each in outcomes)
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
    return round(price.cost_usd(*bill.tokens.priced, tier_ratio=ASSUMED_PRIORITY_RATIO) * NANO)


#: The bill before the first reply.
NOTHING = Bill()
