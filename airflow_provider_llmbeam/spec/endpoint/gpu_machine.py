"""Machines with GPUs: their accelerators and memory."""

from __future__ import annotations

from dataclasses import dataclass

#: Memory of one accelerator, in GB of 10^9 bytes. Source: cloud.google.com/compute/docs/gpus for
#: Vertex AI's names, cloud.google.com/run/docs/configuring/services/gpu for Cloud Run's (lower case).
ACCELERATOR_MEMORY_GB = {
    "NVIDIA_TESLA_T4": 16,
    "NVIDIA_L4": 24,
    "NVIDIA_TESLA_A100": 40,
    "NVIDIA_A100_80GB": 80,
    "NVIDIA_H100_80GB": 80,
    "NVIDIA_H100_MEGA_80GB": 80,
    "NVIDIA_RTX_PRO_6000": 96,
    "NVIDIA_H200_141GB": 141,
    "nvidia-l4": 24,
    "nvidia-rtx-pro-6000": 96,
}


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """A type of machine.

    Attributes:
        machine_type: Name on Compute Engine; for Cloud Run, which has no machine types, that of the GPU.
        accelerator_type: Name of the GPU in the API.
        accelerator_count: Number of GPUs per machine.
    """

    machine_type: str
    accelerator_type: str
    accelerator_count: int

    def __str__(self) -> str:
        return f"{self.machine_type} ({self.accelerator_count} × {self.accelerator_type})"


def _family(name: str, accelerator_type: str, counts: dict[str, int]) -> list[GpuMachine]:
    return [GpuMachine(f"{name}-{size}", accelerator_type, count) for size, count in counts.items()]


# Machine types that include GPUs. Source: cloud.google.com/compute/docs/accelerator-optimized-machines
_MACHINES = [
    *_family("g2-standard", "NVIDIA_L4", {"4": 1, "8": 1, "12": 1, "16": 1, "32": 1, "24": 2, "48": 4, "96": 8}),
    *_family("a2-highgpu", "NVIDIA_TESLA_A100", {"1g": 1, "2g": 2, "4g": 4, "8g": 8}),
    *_family("a2-ultragpu", "NVIDIA_A100_80GB", {"1g": 1, "2g": 2, "4g": 4, "8g": 8}),
    *_family("a3-highgpu", "NVIDIA_H100_80GB", {"1g": 1, "2g": 2, "4g": 4, "8g": 8}),
    *_family("a3-megagpu", "NVIDIA_H100_MEGA_80GB", {"8g": 8}),
    *_family("a3-ultragpu", "NVIDIA_H200_141GB", {"8g": 8}),
]
MACHINES = {machine.machine_type: machine for machine in _MACHINES}

#: Machines by price, the cheapest first; the first that fits is the default. Google's own sample runs Gemma 3 12B
#: on four L4 for its whole context (GoogleCloudPlatform/python-docs-samples, model_garden/gemma/gemma3_deploy.py).
VERTEX_LADDER = tuple(
    MACHINES[name]
    for name in (
        "g2-standard-12",
        "g2-standard-24",
        "a2-highgpu-1g",
        "g2-standard-48",
        "a2-ultragpu-1g",
        "a3-highgpu-1g",
        "a2-ultragpu-2g",
        "a3-highgpu-2g",
        "a3-highgpu-4g",
        "a3-highgpu-8g",
    )
)
#: The same for Cloud Run, where an instance has one GPU.
CLOUD_RUN_LADDER = (
    GpuMachine("nvidia-l4", "nvidia-l4", 1),
    GpuMachine("nvidia-rtx-pro-6000", "nvidia-rtx-pro-6000", 1),
)
