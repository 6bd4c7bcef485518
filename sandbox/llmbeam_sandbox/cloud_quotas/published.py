"""The quotas that the emulated cloud publishes: of models with a fixed quota, and of accelerators. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmbeam_sandbox.billing.gpus import GPUS, Gpu
from llmbeam_sandbox.models.quota import Quota

VERTEX, RUN = "aiplatform.googleapis.com", "run.googleapis.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateQuota:
    """A limit per minute, project, location and base model.

    Attributes:
        metric: Metric, without the service in front.
        id: Id in Cloud Quotas; the `limit_name` in Cloud Monitoring.
        title: Display name.
        is_tokens: Whether it limits input tokens, not requests.
    """

    metric: str
    id: str
    title: str
    is_tokens: bool

    def limit(self, quota: Quota) -> int | None:
        """Returns the limit in a quota of the sandbox; None is no limit."""
        return quota.tokens_per_minute if self.is_tokens else quota.requests_per_minute


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuQuota:
    """A limit of accelerators per project and region.

    Attributes:
        service: Service: Vertex AI or Cloud Run.
        gpu: Kind of accelerator.
        metric: Full metric.
        id: Id in Cloud Quotas.
        title: Display name.
        is_used: Whether accelerators in use count against it; Cloud Run has two quotas, of which one counts.
    """

    service: str
    gpu: Gpu
    metric: str
    id: str
    title: str
    is_used: bool = True

    @property
    def locations(self) -> frozenset[str]:
        """Locations of the accelerator."""
        return self.gpu.vertex_locations if self.service == VERTEX else self.gpu.cloud_run_locations


# The metrics are named in 429s and on the page about quotas; the ids could not be checked.
_GENERATION = (
    RateQuota(
        metric="generate_content_requests_per_minute_per_project_per_base_model",
        id="GenerateContentRequestsPerMinutePerProjectPerRegionPerBaseModel",
        title="Generate content requests per minute per project per base model per region",
        is_tokens=False,
    ),
    RateQuota(
        metric="generate_content_input_tokens_per_minute_per_base_model",
        id="GenerateContentInputTokensPerMinutePerProjectPerRegionPerBaseModel",
        title="Generate content input tokens per minute per base model per region",
        is_tokens=True,
    ),
)
_EMBEDDING = (
    RateQuota(
        metric="online_prediction_requests_per_base_model",
        id="OnlinePredictionRequestsPerMinutePerProjectPerRegionPerBaseModel",
        title="Online prediction requests per base model per minute per region",
        is_tokens=False,
    ),
    RateQuota(
        metric="embed_content_input_tokens_per_minute_per_base_model",
        id="EmbedContentInputTokensPerMinutePerProjectPerRegionPerBaseModel",
        title="Embed content input tokens per minute per base model per region",
        is_tokens=True,
    ),
)
RATE_QUOTAS = (*_GENERATION, *_EMBEDDING)


def rate_quotas(model: str) -> tuple[RateQuota, ...]:
    """Returns the quotas of a model with a published quota."""
    return _EMBEDDING if "embedding" in model else _GENERATION


def has_published_quota(model: str) -> bool:
    """Returns whether a model has a fixed quota, not a share of a pool.

    Source: https://cloud.google.com/vertex-ai/generative-ai/docs/dynamic-shared-quota (Gemini 2.0 and later).
    """
    chat = re.match(r"gemini-(\d+)", model)
    return chat is None or int(chat[1]) < 2


def base_model(model: str) -> str:
    """Returns the base model that the quota of a model belongs to, without the version.

    Source: 429s quoted in public repositories: "with base model: textembedding-gecko", "…: gemini-embedding".
    """
    name = model.partition("@")[0]
    return "textembedding-gecko" if re.match(r"text-?embedding-", name) else re.sub(r"-\d{3}$", "", name)


def _vertex(gpu: Gpu) -> GpuQuota:
    """Source of the ids: `_ACCELERATOR_TYPE_TO_QUOTA_ID_MAP` of the gcloud SDK."""
    word = gpu.quota.replace("_", "").upper()
    return GpuQuota(
        service=VERTEX,
        gpu=gpu,
        metric=f"{VERTEX}/custom_model_serving_nvidia_{gpu.quota}_gpus",
        id=f"CustomModelServing{word}GPUsPerProjectPerRegion",
        title=f"Custom model serving Nvidia {word} GPUs per region",
    )


def _run(gpu: Gpu, *, is_redundant: bool) -> GpuQuota:
    """Source of the ids, of L4: `NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion` in many repositories."""
    word = "".join(part.capitalize() for part in gpu.quota.split("_"))
    return GpuQuota(
        service=RUN,
        gpu=gpu,
        metric=f"{RUN}/nvidia_{gpu.quota}_gpu_allocation{'' if is_redundant else '_no_zonal_redundancy'}",
        id=f"Nvidia{word}GpuAlloc{'' if is_redundant else 'NoZonalRedundancy'}PerProjectRegion",
        title=f"Total Nvidia {word} GPU allocation {'with' if is_redundant else 'without'} zonal redundancy, per "
        "project per region",
        is_used=not is_redundant,
    )


GPU_QUOTAS = (
    *map(_vertex, GPUS),
    *(
        _run(gpu, is_redundant=is_redundant)
        for gpu in GPUS
        if gpu.cloud_run_name
        for is_redundant in (False, True)
    ),
)
