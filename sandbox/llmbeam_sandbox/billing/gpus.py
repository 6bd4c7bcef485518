"""The accelerators of the emulated cloud: their locations, machines and prices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PRICES_AS_OF = "2025-10"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of accelerator.

    Attributes:
        name: Name in Vertex AI.
        number: Number in the enum `AcceleratorType`, which clients may send in place of the name.
        quota: Part of the names of Vertex AI's quotas.
        vertex_usd_per_hour: Price of one accelerator in a Vertex AI endpoint, without its machine.
        vertex_locations: Locations of endpoints that may have it.
        cloud_run_name: Name in node selectors of Cloud Run; "" where Cloud Run does not offer it.
        cloud_run_usd_per_hour: Price of one accelerator in Cloud Run, without zonal redundancy.
        cloud_run_locations: Locations of services that may have it.
        least_cpus: Minimum number of CPUs beside it in Cloud Run.
        least_gib: Minimum memory beside it in Cloud Run, in GiB.
    """

    name: str
    number: int
    quota: str
    vertex_usd_per_hour: float
    vertex_locations: frozenset[str]
    cloud_run_name: str = ""
    cloud_run_usd_per_hour: float = 0.0
    cloud_run_locations: frozenset[str] = frozenset()
    least_cpus: int = 0
    least_gib: int = 0


# List prices of us-central1, rounded to a cent, as of `PRICES_AS_OF`: they show proportions, not invoices.
# Those of L4 are quoted publicly; the others could not be checked. Cloud Run's minima and regions:
# cloud.google.com/run/docs/configuring/services/gpu. Vertex AI's regions are a plausible handful of those that
# cloud.google.com/vertex-ai/docs/general/locations lists.
GPUS: tuple[Gpu, ...] = (
    Gpu(
        name="NVIDIA_TESLA_T4",
        number=5,
        quota="t4",
        vertex_usd_per_hour=0.40,
        vertex_locations=frozenset({"us-central1", "us-east1", "us-west1", "europe-west4", "asia-east1"}),
    ),
    Gpu(
        name="NVIDIA_L4",
        number=11,
        quota="l4",
        vertex_usd_per_hour=0.64,
        vertex_locations=frozenset(
            {"us-central1", "us-east1", "us-east4", "us-west1", "europe-west1", "europe-west2", "europe-west4"}
            | {"asia-east1", "asia-northeast1", "asia-south1", "asia-southeast1"}
        ),
        cloud_run_name="nvidia-l4",
        cloud_run_usd_per_hour=0.67,
        cloud_run_locations=frozenset(
            {"us-central1", "us-east4", "europe-west1", "europe-west4", "asia-southeast1", "asia-south1"}
        ),
        least_cpus=4,
        least_gib=16,
    ),
    Gpu(
        name="NVIDIA_TESLA_A100",
        number=8,
        quota="a100",
        vertex_usd_per_hour=2.93,
        vertex_locations=frozenset({"us-central1", "us-east1", "us-west1", "europe-west4", "asia-southeast1"}),
    ),
    Gpu(
        name="NVIDIA_A100_80GB",
        number=9,
        quota="a100_80gb",
        vertex_usd_per_hour=4.52,
        vertex_locations=frozenset({"us-central1", "us-east4", "europe-west4", "asia-southeast1"}),
    ),
    Gpu(
        name="NVIDIA_H100_80GB",
        number=13,
        quota="h100",
        vertex_usd_per_hour=9.80,
        vertex_locations=frozenset({"us-central1", "us-east4", "us-west1", "europe-west1", "europe-west4"}),
    ),
    Gpu(
        name="NVIDIA_H200_141GB",
        number=15,
        quota="h200",
        vertex_usd_per_hour=10.71,
        vertex_locations=frozenset({"us-central1", "us-east4", "europe-west1"}),
    ),
    Gpu(
        name="NVIDIA_RTX_PRO_6000",
        number=18,
        quota="rtx_pro_6000",
        vertex_usd_per_hour=2.19,
        vertex_locations=frozenset({"us-central1", "us-east1", "europe-west4"}),
        cloud_run_name="nvidia-rtx-pro-6000",
        cloud_run_usd_per_hour=1.81,
        cloud_run_locations=frozenset({"us-central1", "europe-west4", "asia-southeast1"}),
        least_cpus=20,
        least_gib=80,
    ),
)
# Number of accelerators of each machine type; N1 accepts any number.
# Source: docs.cloud.google.com/compute/docs/gpus.
_G2 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
_G4 = {48: 1, 96: 2, 192: 4, 384: 8}
_MACHINES: Mapping[str, tuple[str, int]] = {
    **{f"g2-standard-{cpus}": ("NVIDIA_L4", count) for cpus, count in _G2.items()},
    **{f"g4-standard-{cpus}": ("NVIDIA_RTX_PRO_6000", count) for cpus, count in _G4.items()},
    **{f"a2-highgpu-{count}g": ("NVIDIA_TESLA_A100", count) for count in (1, 2, 4, 8)},
    "a2-megagpu-16g": ("NVIDIA_TESLA_A100", 16),
    **{f"a2-ultragpu-{count}g": ("NVIDIA_A100_80GB", count) for count in (1, 2, 4, 8)},
    **{f"a3-highgpu-{count}g": ("NVIDIA_H100_80GB", count) for count in (1, 2, 4, 8)},
    "a3-ultragpu-8g": ("NVIDIA_H200_141GB", 8),
}
_CPU_MACHINE = re.compile(r"(n1|n2|n2d|c2|c2d|c3|e2)-(standard|highmem|highcpu)-\d{1,3}")
_ATTACHED = "NVIDIA_TESLA_T4"


def gpu_named(name: str | int) -> Gpu | None:
    """Returns the accelerator with a name of Vertex AI or Cloud Run, or a number of the enum; None if unknown."""
    text = str(name)
    return next((gpu for gpu in GPUS if text in (gpu.name, gpu.cloud_run_name, str(gpu.number))), None)


def machine_fault(machine_type: str, gpu: str, gpus: int) -> str:
    """Returns the reason why a machine cannot have these accelerators; "" if it can.

    Args:
        machine_type: Machine type, e.g. "g2-standard-12".
        gpu: Accelerator, by Vertex AI's name; "" is none.
        gpus: Number of accelerators, 0 without `gpu`.
    """
    built_in = _MACHINES.get(machine_type)
    requested = (gpu, gpus)
    if built_in is not None and requested != built_in:
        name, count = built_in
        return f"Machine type {machine_type!r} has {count} {name}; {gpus} {gpu or 'accelerators'} were requested."
    if built_in is None and not _CPU_MACHINE.fullmatch(machine_type):
        return f"Machine type {machine_type!r} is not supported."
    if built_in is None and gpu and (gpu != _ATTACHED or not machine_type.startswith("n1-")):
        return f"Accelerator {gpu} cannot be attached to machine type {machine_type!r}."
    return ""
