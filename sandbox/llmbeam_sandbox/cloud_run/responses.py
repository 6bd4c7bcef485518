"""Errors in the format of Cloud Run."""

from __future__ import annotations

from collections.abc import Mapping

from llmbeam_sandbox.cloud_run.checks import Plan
from llmbeam_sandbox.cloud_run.state import RunService
from llmbeam_sandbox.core.responses import Reply
from llmbeam_sandbox.core.rest import STATUSES, RestError, StatusWording
from llmbeam_sandbox.models.calls import RefusedError

_PAGE = "<html><head><title>{status}</title></head><body><h1>Error: {title}</h1><h2>{text}</h2></body></html>\n"
WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        401: "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or "
        "other valid authentication credential.",
        403: "Permission 'run.services.create' denied on resource (or resource may not exist).",
        409: "The resource already exists.",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=RestError(
        429,
        "Quota exceeded for quota metric 'Write requests' and limit 'Write requests per minute' of service "
        "'run.googleapis.com'.",
    ),
)


def over_quota(plan: Plan) -> RestError:
    """Returns the refusal of a service for which the project's quota is too small.

    Source of the message: output of `gcloud run deploy` quoted in public repositories.
    """
    zones = "with" if plan.is_redundant else "without"
    return RestError(
        400,
        "template.scaling.max_instance_count: You do not have quota for using GPUs "
        f"{zones} zonal redundancy. Learn more about GPU zonal redundancy: g.co/cloudrun/gpu-redundancy-help\n\n"
        "To request quota: g.co/cloudrun/gpu-quota\n",
    )


def busy(service: RunService) -> RestError:
    """Returns the refusal of a change while another operation is running."""
    return RestError(
        409,
        f"Conflict for resource '{service.id}': version '{service.generation}' was specified but another "
        "operation is under way.",
        "ABORTED",
    )


def refused_page(
    http_status: int, title: str, text: str, headers: Mapping[str, str] | None = None
) -> RefusedError:
    """Returns an error as the page of the load balancer, which is in front of the container."""
    page = _PAGE.format(status=http_status, title=title, text=text).encode()
    return RefusedError(
        Reply(
            http_status=http_status, chunks=(page,), content_type="text/html; charset=UTF-8", headers=headers or {}
        )
    )
