"""What the emulated Vertex AI refuses, and how it says so."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.sandbox.billing.gpus import GPUS, Gpu, gpu_named, machine_fault
from airflow_provider_llmbeam.sandbox.core.responses import Reply, json_reply
from airflow_provider_llmbeam.sandbox.core.rest import STATUSES, RestError, Wording

SHARED_SUFFIX = "-aiplatform.googleapis.com"
DEDICATED_SUFFIX = ".prediction.vertexai.goog"
_TYPE = "type.googleapis.com/google.rpc."
_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,9}")
_REGION = re.compile(r"[a-z]+-[a-z]+\d{1,2}")
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")


class DetailedError(RestError):
    """An error that says more: `details` as in `google.rpc.Status`."""

    def __init__(self, http_status: int, message: str, details: list[dict[str, Any]]) -> None:
        super().__init__(http_status, message)
        self.details = details


class VertexWording(Wording):
    """Errors in the shape of Google's newer APIs, with details."""

    def reply(self, error: RestError) -> Reply:
        """Return an error as JSON; its reason, when it has one, is the status."""
        body: dict[str, Any] = {
            "code": error.http_status,
            "message": error.message or self.messages.get(error.http_status, f"HTTP {error.http_status}."),
            "status": error.reason or self.reasons.get(error.http_status, "UNKNOWN"),
        }
        if isinstance(error, DetailedError):
            body["details"] = error.details
        return json_reply({"error": body}, http_status=error.http_status)


WORDING = VertexWording(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a deployment asks for.

    Attributes:
        machine_type: E.g. "g2-standard-12".
        gpu: None without one.
        gpus_per_replica: 0 without one.
        replicas: At least so many, >= 1.
    """

    machine_type: str
    gpu: Gpu | None
    gpus_per_replica: int
    replicas: int

    @property
    def gpus(self) -> int:
        """Of all replicas."""
        return self.gpus_per_replica * self.replicas


def project_number(project: str) -> str:
    """Return the number of a project, in which the service answers whatever it was asked in."""
    return project if project.isdecimal() else str(100_000_000_000 + zlib.crc32(project.encode()))


def check_id(name: str, what: str) -> None:
    """Check an id that the caller chose.

    Raises:
        RestError: It cannot be one.
    """
    if not _ID.fullmatch(name):
        raise RestError(400, f"List of found errors:\t1.Field: {what}; Message: The ID {name!r} is invalid.\t")


def check_labels(labels: Mapping[str, str]) -> None:
    """Check labels.

    Raises:
        RestError: A key or value holds what none may hold, or is too long.
    """
    for key, value in labels.items():
        if not key or not _LABEL.fullmatch(key) or not key[0].isalpha() or not _LABEL.fullmatch(str(value)):
            raise RestError(
                400,
                f"List of found errors:\t1.Field: labels; Message: The label {key!r}={value!r} is invalid: keys "
                "and values may have 63 lowercase letters, digits, underscores and dashes.\t",
            )


def check_location(location: str) -> None:
    """Check that a location is a region; "-" for all of them is none.

    Raises:
        RestError: It is not.
    """
    if not _REGION.fullmatch(location):
        raise RestError(
            400, f"Invalid location {location!r}: it must be a region, and cannot be the '-' wildcard."
        )


def check_host(host: str, location: str) -> None:
    """Check that the regional host is that of the location asked for.

    Raises:
        RestError: It is another one.
    """
    if host.endswith(SHARED_SUFFIX) and host != f"{location}{SHARED_SUFFIX}":
        raise RestError(
            400,
            f"The location of the resource ({location}) does not match that of the host ({host}): use its own.",
        )


def read_hardware(resources: Mapping[str, Any], location: str) -> Hardware:
    """Return what `dedicatedResources` asks for.

    Raises:
        RestError: There is no such machine, not with these accelerators, or not in this location.
    """
    spec = resources.get("machineSpec") or {}
    machine_type, kind = str(spec.get("machineType") or ""), spec.get("acceleratorType") or ""
    gpu = gpu_named(kind) if kind else None
    if kind and gpu is None:
        raise RestError(400, f"Invalid value at 'acceleratorType': {kind!r}.")
    count = int(spec.get("acceleratorCount") or 0)
    fault = machine_fault(machine_type, gpu.name if gpu else "", count if gpu else 0)
    if fault:
        raise RestError(400, fault)
    if gpu is not None and location not in gpu.vertex_locations:
        raise RestError(
            400,
            f"Machine type {machine_type!r} with accelerator {gpu.name} is not supported in region {location}.",
        )
    replicas = int(resources.get("minReplicaCount") or 0)
    most = int(resources.get("maxReplicaCount") or 0) or replicas
    if replicas < 1 or most < replicas:
        raise RestError(400, f"Invalid replica counts: minReplicaCount {replicas}, maxReplicaCount {most}.")
    return Hardware(machine_type=machine_type, gpu=gpu, gpus_per_replica=count if gpu else 0, replicas=replicas)


def over_quota(hardware: Hardware, location: str, limit: int) -> DetailedError:
    """Return the refusal of a deployment for which the project's quota is too small.

    Source of the message: bodies of the same quota for training in
    github.com/GoogleCloudPlatform/stable-diffusion-on-gcp/issues/12; the details are those of
    `google.rpc.QuotaFailure`.
    """
    word = hardware.gpu.quota if hardware.gpu else "cpus"
    metric = f"aiplatform.googleapis.com/custom_model_serving_nvidia_{word}_gpus"
    violation = {
        "subject": f"location:{location}",
        "description": f"{hardware.gpus} were asked for beyond what is in use; the limit is {limit}.",
        "quotaMetric": metric,
        "quotaDimensions": {"region": location},
        "quotaValue": str(limit),
    }
    details = [{"@type": f"{_TYPE}QuotaFailure", "violations": [violation]}]
    return DetailedError(429, f"The following quota metrics exceed quota limits: {metric}", details)


def stock_out(http_status: int, machine_type: str, gpu: Gpu | None, location: str) -> str:
    """Return what an operation says that ended for want of machines.

    Source of the wording of 503: github.com/GoogleCloudPlatform/PerfKitBenchmarker (tests of Vertex AI's model
    serving) and quotations with a machine and accelerator behind it. That of 429 is Compute Engine's.
    """
    if http_status == 429:
        return (
            f"The region {location} does not have enough resources available to fulfill the request for "
            f"{gpu.name if gpu else machine_type}. Try a different region, or try again later."
        )
    told = gpu.name.lower().replace("_", "-") if gpu else ""
    return (
        "Machine type temporarily unavailable, please deploy with a different machine type or retry. "
        f'Machine type: "{machine_type}". Accelerator type: "{told}".'
    )


def gpus_by_name(quota: Mapping[str, Mapping[str, int]] | None) -> None:
    """Check a project's quota of accelerators.

    Raises:
        ValueError: An accelerator is unknown, or a number is below 0.
    """
    for location, limits in (quota or {}).items():
        for name, limit in limits.items():
            if gpu_named(name) is None or limit < 0:
                known = ", ".join(gpu.name for gpu in GPUS)
                raise ValueError(
                    f"`gpu_quota` must hold numbers >= 0 of {known}; got {name!r}: {limit!r} for {location!r}."
                )
