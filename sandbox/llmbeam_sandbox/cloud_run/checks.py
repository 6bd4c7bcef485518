"""Checks of the emulated Cloud Run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmbeam_sandbox.billing.gpus import Gpu, gpu_named
from llmbeam_sandbox.core.checks import check_kms_key
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.models.catalog import Served, read_container

_MOST_GIB = {1: 4, 2: 8, 4: 16, 6: 24, 8: 32}
"""Numbers of whole CPUs up to 8, and the most memory in GiB with each; with a larger GPU there are more CPUs.

Source: docs.cloud.google.com/run/docs/configuring/services/cpu.
"""
MAX_CONCURRENCY = 1000
"""Source: docs.cloud.google.com/run/docs/about-concurrency."""
_ID = re.compile(r"[a-z]([a-z0-9-]{0,47}[a-z0-9])?")
_GPU = "nvidia.com/gpu"
_UNITS = {"": 1 / 2**30, "Mi": 1 / 1024, "Gi": 1.0, "Ti": 1024.0, "M": 1e6 / 2**30, "G": 1e9 / 2**30}
DEFAULT_MAX_INSTANCES = 100
"""Maximum of a service that names none. Source: cloud.google.com/run/docs/configuring/max-instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The configuration of a service.

    Attributes:
        served: Model that its container serves.
        gpu: Kind of accelerator; None without one.
        gpus: Number of accelerators per instance.
        secrets: Secrets in its environment: project, name and version of each.
        least: Minimum number of instances.
        most: Maximum number of instances.
        is_redundant: Whether accelerators are reserved in a second zone.
    """

    served: Served
    gpu: Gpu | None
    gpus: int
    secrets: tuple[tuple[str, str, str], ...]
    least: int
    most: int
    is_redundant: bool


def check_id(name: str) -> None:
    """Checks the id of a service.

    Raises:
        RestError: It is invalid.
    """
    if not _ID.fullmatch(name):
        raise RestError(
            400,
            f"Violation in CreateServiceRequest.service_id: {name!r} must be at most 49 lowercase letters, digits "
            "and dashes, begin with a letter and not end with a dash.",
        )


def read_plan(service: Mapping[str, Any], name: str) -> Plan:
    """Returns the configuration of a service.

    Args:
        service: Fields as sent.
        name: Full name of the service.

    Raises:
        RestError: It is invalid, or not available in the location.
    """
    _, project, _, location, *_ = name.split("/")
    template = service.get("template") or {}
    containers = template.get("containers") or []
    if not containers or not containers[0].get("image"):
        raise RestError(
            400, "Violation in CreateServiceRequest.service.template.containers: an image is required."
        )
    check_kms_key(template.get("encryptionKey"), location)
    container = containers[0]
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    gpus, kind = int(limits.get(_GPU) or 0), (template.get("nodeSelector") or {}).get("accelerator", "")
    gpu = gpu_named(kind) if kind else None
    if bool(gpus) != bool(kind):
        raise _violation("nodeSelector", f"{_GPU} and an accelerator are set together or not at all")
    if kind and (gpu is None or not gpu.cloud_run_name):
        raise _violation("nodeSelector", f"the accelerator {kind!r} is not supported")
    if gpu is not None:
        _check_gpu(gpu, gpus, resources, location)
    if gpu is None or gpu.least_cpus <= max(_MOST_GIB):
        _check_cpu(limits)
    if not 0 <= int(template.get("maxInstanceRequestConcurrency") or 0) <= MAX_CONCURRENCY:
        raise _violation("maxInstanceRequestConcurrency", f"the concurrency must be 1 to {MAX_CONCURRENCY}")
    scaling = template.get("scaling") or {}
    own = service.get("scaling") or {}
    least = int(scaling.get("minInstanceCount") or own.get("minInstanceCount") or 0)
    most = int(scaling.get("maxInstanceCount") or own.get("maxInstanceCount") or DEFAULT_MAX_INSTANCES)
    if most < least:
        raise _violation("scaling", f"max_instance_count {most} is below min_instance_count {least}")
    return Plan(
        served=read_container(container),
        gpu=gpu,
        gpus=gpus,
        secrets=_secrets(container, project),
        least=least,
        most=most,
        is_redundant=not template.get("gpuZonalRedundancyDisabled"),
    )


def _secrets(container: Mapping[str, Any], project: str) -> tuple[tuple[str, str, str], ...]:
    found = []
    for variable in container.get("env") or ():
        reference = (variable.get("valueSource") or {}).get("secretKeyRef") or {}
        if reference:
            parts = str(reference.get("secret") or "").split("/")
            home = parts[1] if parts[0] == "projects" and len(parts) > 1 else project
            found.append((home, parts[-1], str(reference.get("version") or "latest")))
    return tuple(found)


def _check_gpu(gpu: Gpu, gpus: int, resources: Mapping[str, Any], location: str) -> None:
    limits = resources.get("limits") or {}
    if location not in gpu.cloud_run_locations:
        raise _violation("nodeSelector", f"GPU {gpu.cloud_run_name} is not available in region {location}")
    if gpus != 1:
        raise _violation("containers", f"an instance has one GPU; {gpus} were requested")
    cpus, gib = _cpus(str(limits.get("cpu") or "1")), _gib(str(limits.get("memory") or "512Mi"))
    if cpus < gpu.least_cpus or gib < gpu.least_gib:
        raise _violation(
            "containers",
            f"GPU {gpu.cloud_run_name} needs at least {gpu.least_cpus} CPU and {gpu.least_gib}Gi of memory; got "
            f"{cpus:g} and {gib:g}Gi",
        )
    if resources.get("cpuIdle"):
        raise _violation("containers", "cpu_idle must be false with a GPU")


def _check_cpu(limits: Mapping[str, Any]) -> None:
    cpus, gib = _cpus(str(limits.get("cpu") or "1")), _gib(str(limits.get("memory") or "512Mi"))
    most = next((_MOST_GIB[number] for number in _MOST_GIB if number == cpus), None)
    if cpus >= 1 and most is None:
        raise _violation("containers", f"{cpus:g} CPU is none of {', '.join(map(str, _MOST_GIB))}")
    if most is not None and gib > most:
        raise _violation("containers", f"with {cpus:g} CPU, memory must be at most {most}Gi; got {gib:g}Gi")


def _violation(field: str, text: str) -> RestError:
    return RestError(400, f"Violation in CreateServiceRequest.service.template.{field}: {text}.")


def _cpus(text: str) -> float:
    try:
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError as error:
        raise _violation("containers", f"cpu {text!r} is not a number") from error


def _gib(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text)
    if found is None or found[2] not in _UNITS:
        raise _violation("containers", f"memory {text!r} is not a size")
    return float(found[1]) * _UNITS[found[2]]
