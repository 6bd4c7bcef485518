"""What the emulated Dataflow refuses, and how it says so."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.sandbox.core.responses import Reply, json_reply
from airflow_provider_llmbeam.sandbox.core.rest import STATUSES, RestError, Wording
from airflow_provider_llmbeam.sandbox.storage.state import ObjectStore

_REGION = re.compile(r"[a-z]+-[a-z]+\d{1,2}")
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,1022}[a-z0-9])?")
# Families and shapes. Source: docs.cloud.google.com/compute/docs/machine-resource.
_MACHINE = re.compile(
    r"((n1|n2|n2d|n4|c2|c2d|c3|c3d|c4|c4a|c4d|e2|t2a|t2d|m1|m2|m3)-(standard|highmem|highcpu|ultramem|megamem)-\d{1,3}"
    r"(-lssd)?|(custom|(n1|n2|n2d|n4|e2)-custom)-\d{1,3}-\d{3,6}(-ext)?|(e2)-(micro|small|medium)|(f1-micro|g1-small)"
    r"|g2-standard-(4|8|12|16|24|32|48|96)|g4-standard-(48|96|192|384)|a2-(high|mega|ultra)gpu-\d{1,2}g"
    r"|a3-(high|mega|edge|ultra)gpu-[1248]g|a4-highgpu-8g|ct[56][lep]*-hightpu-[148]t)"
)


class DataflowWording(Wording):
    """Errors in the shape of Google's newer APIs: with a `status`."""

    def reply(self, error: RestError) -> Reply:
        """Return an error as JSON; its reason, when it has one, is the status."""
        body = {
            "code": error.http_status,
            "message": error.message or self.messages.get(error.http_status, f"HTTP {error.http_status}."),
            "status": error.reason or STATUSES.get(error.http_status, "UNKNOWN"),
        }
        return json_reply({"error": body}, http_status=error.http_status)


WORDING = DataflowWording(
    reasons=STATUSES,
    messages={
        401: "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or "
        "other valid authentication credential.",
        403: "The caller does not have permission",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=RestError(
        429,
        "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute per user' of service "
        "'dataflow.googleapis.com'.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The workers that a job asks for.

    Attributes:
        machine_type: "" leaves it to the service.
        max_workers: 0 leaves it to the service.
    """

    machine_type: str = ""
    max_workers: int = 0


def refused(http_status: int, message: str, reason: str = "") -> RestError:
    """Return an error with a number in front, as most of the service's have."""
    return RestError(http_status, f"({secrets.token_hex(8)}): {message}", reason)


def not_created(cause: str, http_status: int = 400) -> RestError:
    """Return the error of a job that cannot be made."""
    message = f"The workflow could not be created. Causes: ({secrets.token_hex(8)}): {cause}"
    return refused(http_status, message)


def check_caller(headers: Mapping[str, str]) -> None:
    """Check that a token came along; which one does not matter.

    Raises:
        RestError: There is none.
    """
    if not headers.get("authorization", "").startswith("Bearer "):
        raise RestError(401, "")


def check_project(project: str, projects: Sequence[str] | None, permission: str) -> None:
    """Check that a project is one of those that there are; None stands for all.

    Raises:
        RestError: It is not; the service does not tell it from a project without permission.
    """
    if projects is None or project in projects:
        return
    cause = f"({secrets.token_hex(8)}): Permission '{permission}' denied on project: '{project}'"
    if permission == "dataflow.jobs.create":
        raise refused(
            403,
            f"Could not create workflow; user does not have write access to project: {project} Causes: {cause}",
        )
    raise RestError(403, f"{cause}; user does not have access to project: {project}")


def check_location(location: str) -> None:
    """Check that a location looks like a region.

    Raises:
        RestError: It does not.
    """
    if not _REGION.fullmatch(location):
        raise refused(
            400,
            "The workflow could not be created, since it was sent to an invalid or unreachable region "
            f"({location}). Please resubmit to a valid Cloud Dataflow region.",
        )


def check_name(name: str) -> None:
    """Check the name of a job.

    Raises:
        RestError: It is none.
    """
    if not _NAME.fullmatch(name):
        raise refused(
            400,
            f"The workflow could not be created. The job name '{name}' is invalid; it must consist of only the "
            "characters [-a-z0-9], starting with a letter and ending with a letter or number.",
        )


def check_machine_type(machine_type: str) -> None:
    """Check that a machine type is of a known family; "" is left to the service.

    Raises:
        RestError: It is not.
    """
    if machine_type and not _MACHINE.fullmatch(machine_type):
        raise not_created(f"The machine type '{machine_type}' is invalid or does not exist in this zone.")


def check_bucket(store: ObjectStore, uri: str, what: str) -> None:
    """Check that the bucket of a gs:// address is there; "" is left to the service.

    Raises:
        RestError: It is not.
    """
    if not uri:
        return
    bucket = uri.removeprefix("gs://").removeprefix("storage.googleapis.com/").partition("/")[0]
    if bucket not in {one.name for one in store.buckets()}:
        raise not_created(f"The {what} bucket '{bucket}' of '{uri}' does not exist or is not accessible.")


def workers_of(fields: Mapping[str, Any]) -> Workers:
    """Return what the first worker pool of a job asks for."""
    pools = (fields.get("environment") or {}).get("workerPools") or [{}]
    scaling = pools[0].get("autoscalingSettings") or {}
    return Workers(
        machine_type=str(pools[0].get("machineType") or ""), max_workers=int(scaling.get("maxNumWorkers") or 0)
    )


def not_found(job_id: str) -> RestError:
    """Return the error of a job that there is not."""
    return refused(
        404,
        f"Information about job {job_id} could not be found in our system. Please double check the id is correct. "
        "If it is please contact customer support.",
    )
