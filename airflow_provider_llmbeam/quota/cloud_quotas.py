"""Cloud Quotas: the limits of a service, and the quota of accelerators that an endpoint needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.google.base import GoogleHook
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest
from airflow_provider_llmbeam.hooks.google.rest import GoogleRest
from airflow_provider_llmbeam.spec.endpoint import CloudRunEndpoint, VertexEndpoint

HOST = "https://cloudquotas.googleapis.com"
#: Value of a quota without a limit.
UNLIMITED = -1.0
_PAGE_SIZE = 1_000

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
class QuotaLimit:
    """One limit and its scope.

    Attributes:
        metric: Metric that is limited.
        value: Limit; `UNLIMITED` for none.
        dimensions: Scope, e.g. `{"region": "us-central1", "base_model": "gemma-3"}`; empty for everything.
        locations: Locations to which the limit applies.
        interval: `minute` or `day` for a rate; empty for an allocation, such as accelerators.
    """

    metric: str
    value: float
    dimensions: Mapping[str, str]
    locations: tuple[str, ...] = ()
    interval: str = ""

    def holds(self, location: str, base_model: str | None = None) -> bool:
        """Whether the limit applies to a location, and to a model if one is given."""
        region = self.dimensions.get("region") or self.dimensions.get("location")
        is_there = region == location if region else not self.locations or location in self.locations
        return is_there and (base_model is None or self.dimensions.get("base_model") == base_model)

    @property
    def narrowness(self) -> int:
        """Number of dimensions; a limit with more dimensions overrides one with fewer."""
        return len(self.dimensions)


def read_limits(hook: GoogleHook, service: str, rest: GoogleRest | None = None) -> list[QuotaLimit]:
    """Reads all limits of a service.

    Args:
        hook: Hook with the credentials and the project.
        service: API, e.g. `aiplatform.googleapis.com`.
        rest: Client; made from `hook` if omitted.

    Raises:
        CloudError: See `hooks.google.errors`.
    """
    asking, project = rest or GoogleRest(hook), hook.project
    url = f"{HOST}/v1/projects/{project}/locations/global/services/{service}/quotaInfos"
    request = CloudRequest(
        action=f"show the quotas of {service!r}",
        project=project,
        service="cloudquotas.googleapis.com",
        role="roles/cloudquotas.viewer",
        missing=f"service {service!r}",
    )
    return [
        _limit(info, each)
        for reply in asking.pages(url, {"pageSize": _PAGE_SIZE}, request)
        for info in reply.get("quotaInfos", ())
        for each in info.get("dimensionsInfos", ())
    ]


def _limit(info: Mapping[str, Any], data: Mapping[str, Any]) -> QuotaLimit:
    return QuotaLimit(
        metric=info["metric"],
        # JSON of Google's APIs omits a number that is 0.
        value=float(data.get("details", {}).get("value", 0)),
        dimensions=data.get("dimensions", {}),
        locations=tuple(data.get("applicableLocations", ())),
        interval=info.get("refreshInterval", ""),
    )


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
            "is their quota; name the machine, e.g. 'g2-standard-12'."
        )
    spot = "preemptible_" if endpoint.spot else ""
    name = _QUOTA_NAMES[machine.accelerator_type]
    metric = f"aiplatform.googleapis.com/custom_model_serving_{spot}nvidia_{name}_gpus"
    count = machine.accelerator_count * endpoint.min_replicas * len(endpoint.deployed_models)
    return AcceleratorNeed("aiplatform.googleapis.com", metric, machine.accelerator_type, count)
