"""Service tiers: at which a request is served, and what it costs there."""

from __future__ import annotations

from typing import Literal, get_args

#: Tier at which a request was served; the server reports it, as it may differ from the requested one.
ServiceTier = Literal["standard", "flex", "priority", "batch"]
SERVICE_TIERS: tuple[ServiceTier, ...] = get_args(ServiceTier)

#: Tier that a request asks for.
AskedTier = Literal["standard", "flex", "priority"]

#: Tier that a job asks for; with `flex_then_standard` a row that flex does not answer is sent at `standard`.
RequestedTier = Literal["standard", "flex", "flex_then_standard", "priority"]

#: Those with which requests may be shed.
FLEX_TIERS: frozenset[RequestedTier] = frozenset({"flex", "flex_then_standard"})

#: Tier of the requests that are not sent at flex.
OrdinaryTier = Literal["standard", "priority"]

#: Price of input and output tokens over that of the standard tier, for Gemini and OpenAI; that of `priority`
#: differs by model, see `Price`.
#: Source: ai.google.dev/gemini-api/docs/pricing, platform.openai.com/docs/pricing (2026-11)
TIER_RATIOS: dict[ServiceTier, float] = {"standard": 1.0, "flex": 0.5, "batch": 0.5}

#: Price of the priority tier over that of the standard one where it is not known, to compare ways and for budgets:
#: the least that Gemini announces, 75 to 100 % more.
#: Source: ai.google.dev/gemini-api/docs/priority-inference (2026-11)
ASSUMED_PRIORITY_RATIO = 1.75

#: Maximum time of a flex request, in seconds. Source: ai.google.dev/gemini-api/docs/flex-inference (a target of
#: 1 to 15 minutes), platform.openai.com/docs/guides/flex-processing (15 minutes).
MAX_FLEX_SECONDS = 900.0


def ordinary_tier(requested: RequestedTier) -> OrdinaryTier:
    """Returns the tier of the requests of a job that are not sent at flex."""
    return "priority" if requested == "priority" else "standard"
