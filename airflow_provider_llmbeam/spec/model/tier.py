"""Service tiers: at which a request is served, and what it costs there."""

from __future__ import annotations

from typing import Literal, get_args

#: Tier at which a request was served; the server reports it, as it may differ from the requested one.
ServiceTier = Literal["standard", "flex", "priority", "batch"]
SERVICE_TIERS: tuple[ServiceTier, ...] = get_args(ServiceTier)

#: Tier that a job asks for; with `flex_then_standard` a row that flex does not answer is sent at `standard`.
RequestedTier = Literal["standard", "flex", "flex_then_standard"]

#: Price of input and output tokens over that of the standard tier, for Gemini and OpenAI; unknown for `priority`.
#: Source: ai.google.dev/gemini-api/docs/pricing, platform.openai.com/docs/pricing (2026-11)
TIER_RATIOS: dict[ServiceTier, float] = {"standard": 1.0, "flex": 0.5, "batch": 0.5}

#: Maximum time of a flex request, in seconds. Source: ai.google.dev/gemini-api/docs/flex-inference (a target of
#: 1 to 15 minutes), platform.openai.com/docs/guides/flex-processing (15 minutes).
MAX_FLEX_SECONDS = 900.0
