"""Checks of the emulated Vertex AI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmbeam_sandbox.billing.gpus import Gpu, gpu_named, machine_fault
from llmbeam_sandbox.core.rest import RestError

SHARED_SUFFIX = "-aiplatform.googleapis.com"
DEDICATED_SUFFIX = ".prediction.vertexai.goog"
#: Hosts of endpoints in peered networks, over plain HTTP. Source: examples of Google's page on private endpoints.
PEERED_SUFFIX = ".aiplatform.googleapis.com"
#: Names that stand for the forwarding rules of Private Service Connect.
CONNECTED_SUFFIX = ".p.vertexai.goog"
_ID = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware that a deployment requests.

    Attributes:
        machine_type: Machine type, e.g. "g2-standard-12".
        gpu: Kind of accelerator; None without one.
        gpus_per_replica: Number of accelerators per replica; 0 without one.
        replicas: Minimum number of replicas, >= 1.
    """

    machine_type: str
    gpu: Gpu | None
    gpus_per_replica: int
    replicas: int

    @property
    def gpus(self) -> int:
        """Number of accelerators of all replicas."""
        return self.gpus_per_replica * self.replicas


def check_id(name: str, what: str) -> None:
    """Checks an id that the caller chose.

    Raises:
        RestError: It is invalid.
    """
    if not _ID.fullmatch(name):
        raise RestError(400, f"List of found errors:\t1.Field: {what}; Message: The ID {name!r} is invalid.\t")


def check_host(host: str, location: str) -> None:
    """Checks that the regional host is that of the location in the path.

    Raises:
        RestError: It is that of another location.
    """
    if host.endswith(SHARED_SUFFIX) and host != f"{location}{SHARED_SUFFIX}":
        raise RestError(
            400,
            f"The location of the resource ({location}) does not match that of the host ({host}): use its own.",
        )


def read_hardware(resources: Mapping[str, Any], location: str) -> Hardware:
    """Returns the hardware that `dedicatedResources` requests.

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
