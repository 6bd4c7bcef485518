"""Errors in the format of Vertex AI."""

from __future__ import annotations

from llmbeam_sandbox.billing.gpus import Gpu
from llmbeam_sandbox.core.responses import ERROR_TYPE
from llmbeam_sandbox.core.rest import STATUSES, RestError, StatusWording
from llmbeam_sandbox.vertex.checks import Hardware

WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        401: "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or "
        "other valid authentication credential.",
        403: "Permission denied on resource (or it may not exist).",
        409: "The resource already exists.",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=RestError(
        429,
        "Quota exceeded for quota metric 'Resource management (CRUD) requests' and limit 'Resource management "
        "(CRUD) requests per minute per region' of service 'aiplatform.googleapis.com'.",
    ),
)


def over_quota(hardware: Hardware, location: str, limit: int) -> RestError:
    """Returns the refusal of a deployment for which the project's quota is too small.

    Source of the message: bodies of the same quota for training in
    github.com/GoogleCloudPlatform/stable-diffusion-on-gcp/issues/12; the details are those of
    `google.rpc.QuotaFailure`.
    """
    kind = hardware.gpu.quota if hardware.gpu else "cpus"
    metric = f"aiplatform.googleapis.com/custom_model_serving_nvidia_{kind}_gpus"
    violation = {
        "subject": f"location:{location}",
        "description": f"{hardware.gpus} were requested beyond those in use; the limit is {limit}.",
        "quotaMetric": metric,
        "quotaDimensions": {"region": location},
        "quotaValue": str(limit),
    }
    details = [{"@type": f"{ERROR_TYPE}QuotaFailure", "violations": [violation]}]
    return RestError(429, f"The following quota metrics exceed quota limits: {metric}", details=details)


def stock_out(http_status: int, machine_type: str, gpu: Gpu | None, location: str) -> str:
    """Returns the message of an operation that failed because there were no machines left.

    Source of the message of 503: github.com/GoogleCloudPlatform/PerfKitBenchmarker (tests of Vertex AI's model
    serving) and quotations with a machine and accelerator at the end. That of 429 is Compute Engine's.
    """
    if http_status == 429:
        return (
            f"The region {location} does not have enough resources available to fulfill the request for "
            f"{gpu.name if gpu else machine_type}. Try a different region, or try again later."
        )
    accelerator = gpu.name.lower().replace("_", "-") if gpu else ""
    return (
        "Machine type temporarily unavailable, please deploy with a different machine type or retry. "
        f'Machine type: "{machine_type}". Accelerator type: "{accelerator}".'
    )
