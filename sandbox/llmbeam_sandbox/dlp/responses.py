"""Findings and errors in the format of Sensitive Data Protection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmbeam_sandbox.core.checks import project_number
from llmbeam_sandbox.core.rest import STATUSES, RestError, StatusWording
from llmbeam_sandbox.dlp.info_types import Found

_SERVICE = "dlp.googleapis.com"


def rate_limited(project: str) -> RestError:
    """Returns the error of a request above the quota; like that of most services it names no delay."""
    message = (
        f"Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service '{_SERVICE}' for "
        f"consumer 'project_number:{project_number(project)}'."
    )
    metadata = {"service": _SERVICE, "quota_limit": "DefaultPerMinutePerProject"}
    return RestError(429, message, details=[_error_info("RATE_LIMIT_EXCEEDED", metadata)])


def disabled(project: str) -> RestError:
    """Returns the error of a project whose API is not enabled."""
    number = project_number(project)
    address = f"https://console.developers.google.com/apis/api/{_SERVICE}/overview?project={number}"
    message = (
        f"Sensitive Data Protection (DLP) has not been used in project {number} before or it is disabled. Enable "
        f"it by visiting {address} then retry. If you enabled this API recently, wait a few minutes for the "
        "action to propagate to our systems and retry."
    )
    metadata = {"service": _SERVICE, "consumer": f"projects/{number}"}
    return RestError(403, message, details=[_error_info("SERVICE_DISABLED", metadata)])


def finding(found: Found, text: str, record: Mapping[str, Any] | None, created_at: str) -> dict[str, Any]:
    """Returns a finding as the API returns it: numbers are texts, and a zero is left out.

    Args:
        found: The finding.
        text: The text, whose UTF-8 the byte range is of.
        record: Place in a table, see `record_location`; `None` without one.
        created_at: Time of the inspection.
    """
    before = len(text[: found.start].encode())
    size = len(text[found.start : found.end].encode())
    location: dict[str, Any] = {
        "byteRange": _range(before, before + size),
        "codepointRange": _range(found.start, found.end),
    }
    if record is not None:
        location["contentLocations"] = [{"recordLocation": record}]
    return {
        "infoType": {"name": found.info_type},
        "likelihood": found.likelihood,
        "location": location,
        "createTime": created_at,
    }


def record_location(column: str, row: int) -> dict[str, Any]:
    """Returns the place of a value in a table."""
    return {"fieldId": {"name": column}, "tableLocation": {"rowIndex": str(row)} if row else {}}


def _range(start: int, end: int) -> dict[str, str]:
    return ({"start": str(start)} if start else {}) | {"end": str(end)}


def _error_info(reason: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    return {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": dict(metadata),
    }


WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        403: "Caller does not have required permission to use project. Grant the caller the "
        "roles/serviceusage.serviceUsageConsumer role, or a custom role with the serviceusage.services.use "
        "permission.",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=rate_limited("0"),
)
