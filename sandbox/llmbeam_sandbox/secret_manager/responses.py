"""Secrets, their versions and errors in the format of Secret Manager."""

from __future__ import annotations

from typing import Any

from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.rest import STATUSES, RestCall, RestError, StatusWording, page
from llmbeam_sandbox.secret_manager.state import Secret

WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        403: "Permission 'secretmanager.versions.access' denied for resource (or it may not exist).",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=RestError(429, "Quota exceeded for quota metric 'Access requests' and limit 'per minute'."),
)


def secret_resource(secret: Secret) -> dict[str, Any]:
    """Returns a secret as the API returns it."""
    return {**secret.fields, "name": secret.path, "createTime": timestamp(secret.created_at)}


def version_resource(secret: Secret, number: int) -> dict[str, Any]:
    """Returns a version of a secret as the API returns it."""
    _, created_at = secret.versions[number - 1]
    name = f"{secret.path}/versions/{number}"
    return {"name": name, "createTime": timestamp(created_at), "state": "ENABLED"}


def page_of(call: RestCall, key: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the requested page of `items` under `key`."""
    shown, token = page(call, items, default=25_000, size="pageSize")
    return {key: shown, "totalSize": len(items), **token}
