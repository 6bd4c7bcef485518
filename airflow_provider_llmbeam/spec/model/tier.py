"""Service tiers: at which a request is served. Their prices are in `spec.facts`."""

from __future__ import annotations

from typing import Literal, get_args

#: Tier at which a request was served; the server reports it, as it may differ from the requested one.
ServiceTier = Literal["standard", "flex", "priority", "batch", "off_peak", "provisioned"]
SERVICE_TIERS: tuple[ServiceTier, ...] = get_args(ServiceTier)

#: Tier that a request asks for.
AskedTier = Literal["standard", "flex", "priority", "provisioned", "provisioned_then_flex"]

#: Tier that a job asks for; with `flex_then_standard` a row that flex does not answer is sent at `standard`.
RequestedTier = Literal[
    "standard", "flex", "flex_then_standard", "priority", "provisioned", "provisioned_then_flex"
]

#: Those with which requests may be shed.
FLEX_TIERS: frozenset[RequestedTier] = frozenset({"flex", "flex_then_standard", "provisioned_then_flex"})

#: Those that name Provisioned Throughput.
PROVISIONED_TIERS: frozenset[RequestedTier] = frozenset({"provisioned", "provisioned_then_flex"})

#: Tier of the requests that are not sent at flex.
OrdinaryTier = Literal["standard", "priority", "provisioned"]


def ordinary_tier(requested: RequestedTier) -> OrdinaryTier:
    """Returns the tier of the requests of a job that are not sent at flex."""
    return requested if requested in ("priority", "provisioned") else "standard"


def flex_tier(requested: RequestedTier) -> AskedTier:
    """Returns the tier of those that are."""
    return "provisioned_then_flex" if requested == "provisioned_then_flex" else "flex"
