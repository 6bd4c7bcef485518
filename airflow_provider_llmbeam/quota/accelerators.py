"""Accelerator quota that an endpoint needs."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.endpoint import CloudRunEndpoint, VertexEndpoint

#: Accelerators as they appear in the names of Vertex AI's quotas, e.g. `custom_model_serving_nvidia_l4_gpus`.
#: Source: the notebooks of GoogleCloudPlatform/vertex-ai-samples, which check them before they deploy.
_QUOTA_NAMES = {
    "NVIDIA_TESLA_T4": "t4",
    "NVIDIA_L4": "l4",
    "NVIDIA_TESLA_A100": "a100",
    "NVIDIA_A100_80GB": "a100_80gb",
    "NVIDIA_H100_80GB": "h100",
    "NVIDIA_H100_MEGA_80GB": "h100_mega",
    "NVIDIA_H200_141GB": "h200",
    "NVIDIA_RTX_PRO_6000": "rtx_pro_6000",
}


@dataclass(frozen=True, slots=True)
class AcceleratorNeed:
    """Quota for the deployment of an endpoint: its first replicas, or on Cloud Run its maximum of instances.

    Attributes:
        service: API that owns the quota.
        metric: Metric of the quota.
        kind: Type of the accelerator.
        count: Number of accelerators.
    """

    service: str
    metric: str
    kind: str
    count: int


def accelerator_need(endpoint: VertexEndpoint | CloudRunEndpoint) -> AcceleratorNeed:
    """Returns the accelerator quota that an endpoint needs.

    Raises:
        JobSpecError: Model Garden chooses the machine, which is not known beforehand.
    """
    if isinstance(endpoint, CloudRunEndpoint):
        gpu = endpoint.machine.accelerator_type.replace("-", "_")
        # `hooks.cloud_run` deploys without zonal redundancy, which has a quota of its own.
        metric = f"run.googleapis.com/{gpu}_gpu_allocation_no_zonal_redundancy"
        return AcceleratorNeed("run.googleapis.com", metric, gpu, endpoint.gpu_count * endpoint.max_instances)
    machine = endpoint.machine
    if machine is None or machine.accelerator_type not in _QUOTA_NAMES:
        raise JobSpecError(
            f"`endpoint.machine_type`: the accelerators of {endpoint.model} are not known beforehand, nor "
            "is their quota; name the machine, e.g. 'g2-standard-12'. Nothing was started or billed."
        )
    spot = "preemptible_" if endpoint.spot else ""
    name = _QUOTA_NAMES[machine.accelerator_type]
    metric = f"aiplatform.googleapis.com/custom_model_serving_{spot}nvidia_{name}_gpus"
    count = machine.accelerator_count * endpoint.min_replicas
    return AcceleratorNeed("aiplatform.googleapis.com", metric, machine.accelerator_type, count)
