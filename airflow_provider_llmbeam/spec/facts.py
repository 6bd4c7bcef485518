"""Facts of the model services that age: limits, tiers and their prices, names on the wire.

Each has its source beside it; those without a date were last compared with theirs on 2026-11-27. What a service
changes is changed here alone. List prices are those of the package `genai-prices`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.model.tier import AskedTier, ServiceTier

# Standard PayGo of Vertex AI. Source: docs.cloud.google.com/gemini-enterprise-agent-platform/models/standard-paygo

#: Gemini models that share a pool and have no quota: those from 2.0 on, without the embedding models.
SHARED_POOL = re.compile(r"gemini-(?!1\.|.*embedding)")
#: The only location whose requests have a threshold.
TIER_LOCATION = "global"
#: Tokens per minute up to which the requests of an organisation to one model are served first, by usage tier. The
#: tier follows from the spend of 30 days: 1 from $10, 2 from $250, 3 from $2,000. The page does not say whether
#: output or cached tokens count; all are taken to.
USAGE_TIERS: Mapping[Literal["flash", "pro"], Mapping[int, int]] = {
    "flash": {1: 2_000_000, 2: 4_000_000, 3: 10_000_000},
    "pro": {1: 500_000, 2: 1_000_000, 3: 2_000_000},
}
#: Requests per minute to one model in one region, at any tier.
MOST_REQUESTS_PER_MINUTE = 30_000

# Service tiers.

#: Price of input and output tokens over that of the standard tier, for Gemini and OpenAI; that of `priority`
#: differs by model, see `Price`. Source: ai.google.dev/gemini-api/docs/pricing, platform.openai.com/docs/pricing
#: (2026-11). Provisioned Throughput is paid for whether it is used or not
#: (docs.cloud.google.com/vertex-ai/generative-ai/docs/provisioned-throughput). The price of `off_peak` was not
#: found: the standard one is taken.
TIER_RATIOS: Mapping[ServiceTier, float] = {
    "standard": 1.0,
    "flex": 0.5,
    "batch": 0.5,
    "off_peak": 1.0,
    "provisioned": 0.0,
}
#: Price of the priority tier over that of the standard one where it is not known, to compare ways and for budgets:
#: the least that Gemini announces, 75 to 100 % more.
#: Source: ai.google.dev/gemini-api/docs/priority-inference (2026-11)
ASSUMED_PRIORITY_RATIO = 1.75
#: Maximum time of a flex request, in seconds. Source: ai.google.dev/gemini-api/docs/flex-inference (a target of
#: 1 to 15 minutes), platform.openai.com/docs/guides/flex-processing (15 minutes).
MAX_FLEX_SECONDS = 900.0

#: Tiers by the names of the Developer API (`usageMetadata.serviceTier`), Vertex AI (`usageMetadata.trafficType`,
#: all of google-genai 2.34 and 3.6.1) and OpenAI (`service_tier`), where `fast` is the newer name of `priority`:
#: replies have had the older one, and may have either (openai 2.54, `ChatCompletion.service_tier`).
REPORTED_TIERS: Mapping[str, ServiceTier] = {
    "flex": "flex",
    "on_demand_flex": "flex",
    "priority": "priority",
    "on_demand_priority": "priority",
    "fast": "priority",
    "on_demand_offpeak": "off_peak",
    "provisioned_throughput": "provisioned",
}

_SERVER_TIMEOUT = {"X-Server-Timeout": f"{MAX_FLEX_SECONDS:.0f}"}
_REQUEST_TYPE, _SHARED_TYPE = "X-Vertex-AI-LLM-Request-Type", "X-Vertex-AI-LLM-Shared-Request-Type"
#: Headers of a request to Vertex AI by its tier. Without a request type, Provisioned Throughput is used first, and
#: what is above it goes to the shared type. Without `X-Server-Timeout` a request at flex ends after 20 minutes.
#: Source: docs.cloud.google.com/vertex-ai/generative-ai/docs/provisioned-throughput/use-provisioned-throughput,
#: …/flex-paygo and …/priority-paygo
VERTEX_TIER_HEADERS: Mapping[AskedTier, Mapping[str, str]] = {
    "standard": {},
    "priority": {_SHARED_TYPE: "priority"},
    "flex": {_REQUEST_TYPE: "shared", _SHARED_TYPE: "flex", **_SERVER_TIMEOUT},
    "provisioned": {_REQUEST_TYPE: "dedicated"},
    "provisioned_then_flex": {_SHARED_TYPE: "flex", **_SERVER_TIMEOUT},
}
