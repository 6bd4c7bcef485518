"""Quotas and errors in the format of Cloud Quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmbeam_sandbox.core.rest import STATUSES, RestError, StatusWording

UNLIMITED = "-1"
WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        403: "Permission 'cloudquotas.quotas.get' denied on resource (or it may not exist).",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=RestError(
        429,
        "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of service "
        "'cloudquotas.googleapis.com'.",
    ),
)


def quota_info(
    parent: str,
    quota_id: str,
    service: str,
    metric: str,
    title: str,
    dimensions: list[str],
    dimensions_infos: list[dict[str, Any]],
) -> dict[str, Any]:
    """Returns a quota as the API returns it."""
    return {
        "name": f"{parent}/quotaInfos/{quota_id}",
        "quotaId": quota_id,
        "metric": metric,
        "service": service,
        "isPrecise": True,
        "containerType": "PROJECT",
        "dimensions": dimensions,
        "metricDisplayName": title,
        "quotaDisplayName": title,
        "metricUnit": "1",
        "isFixed": False,
        "dimensionsInfos": dimensions_infos,
    }


def dimensions_info(names: Mapping[str, str], limit: int | None, locations: list[str]) -> dict[str, Any]:
    """Returns the limit of locations; None is no limit."""
    dimensions: dict[str, Any] = {"dimensions": dict(names)} if names else {}
    value = UNLIMITED if limit is None else str(limit)
    details = {"value": value} if limit != 0 else {}  # JSON of Google's APIs omits a 0
    return dimensions | {"details": details, "applicableLocations": locations}
