"""Which quota an endpoint needs, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.endpoint import CloudRunEndpoint, VertexEndpoint

#: Words for accelerators in the names of Vertex AI's quotas, e.g. `custom_model_serving_nvidia_l4_gpus`.
#: Source: the notebooks of GoogleCloudPlatform/vertex-ai-samples, which check them before they deploy.
_WORDS = {
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
    """What must be free for an endpoint to be deployed: its first replicas, on Cloud Run its most instances.

    Attributes:
        service: Whose quota it is.
        metric: Of the quota.
        kind: Of the accelerator.
        count: Accelerators.
    """

    service: str
    metric: str
    kind: str
    count: int


def accelerator_need(endpoint: VertexEndpoint | CloudRunEndpoint) -> AcceleratorNeed:
    """Works out the quota of an endpoint.

    Raises:
        JobSpecError: Model Garden chooses its machine, which is not known beforehand.
    """
    if isinstance(endpoint, CloudRunEndpoint):
        gpu = endpoint.machine.accelerator_type.replace("-", "_")
        # Without zonal redundancy, as `hooks.cloud_run` deploys; the other has a quota of its own.
        metric = f"run.googleapis.com/{gpu}_gpu_allocation_no_zonal_redundancy"
        return AcceleratorNeed("run.googleapis.com", metric, gpu, endpoint.gpu_count * endpoint.max_instances)
    machine = endpoint.machine
    if machine is None or machine.accelerator_type not in _WORDS:
        raise JobSpecError(
            f"`endpoint.machine_type`: which accelerators {endpoint.model} takes is not known beforehand, so "
            "neither is their quota; name the machine, e.g. 'g2-standard-12'. Nothing was started or billed."
        )
    spot = "preemptible_" if endpoint.spot else ""
    metric = f"aiplatform.googleapis.com/custom_model_serving_{spot}nvidia_{_WORDS[machine.accelerator_type]}_gpus"
    count = machine.accelerator_count * endpoint.min_replicas
    return AcceleratorNeed("aiplatform.googleapis.com", metric, machine.accelerator_type, count)
