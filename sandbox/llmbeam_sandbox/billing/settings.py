"""Settings of what is provisioned for models: endpoints of Vertex AI and services of Cloud Run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmbeam_sandbox.billing.gpus import GPUS, gpu_named

GpuLimits = Mapping[str, Mapping[str, int]]
"""Number of accelerators by location and kind, e.g. {"europe-west4": {"NVIDIA_L4": 2}}."""


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """Settings of the provisioning of endpoints and services. All durations are by the sandbox's clock.

    Attributes:
        operation_seconds: Duration of an operation on endpoints, models and services, in seconds, >= 0.
        warm_seconds: Time for which a deployed model answers 503 at first, in seconds, >= 0.
        cold_start_seconds: Time for which an instance of Cloud Run that a request has started answers 503, in
            seconds, >= 0.
        idle_seconds: Time from the last request to the end of an instance that is not kept, in seconds, >= 0.
        garden_model_id: `metadata.modelId` of a deployment from Model Garden; "" leaves it out, as published
            examples do. The service documents it as "the model id to be used at query time".
        garden_resources: When endpoint and model of a deployment from Model Garden exist: "at_once", or only
            "when_deployed". The service does not say; "when_deployed" also takes a second request for the same
            ids, and so a second machine.
        chat_completions: Which containers behind an endpoint answer `chat/completions`: "every_container", or
            those of "model_garden" alone, for which it is documented; the others then answer it with 400.
        gpu_quota: Quota of each project, for endpoints and for services by themselves; what it does not name is 0.
            None is no limit.

    Raises:
        ValueError: A number is negative, or an accelerator is unknown.
    """

    operation_seconds: float = 0.0
    warm_seconds: float = 0.0
    cold_start_seconds: float = 0.0
    idle_seconds: float = 900.0
    chat_completions: Literal["every_container", "model_garden"] = "every_container"
    garden_model_id: str = ""
    garden_resources: Literal["at_once", "when_deployed"] = "at_once"
    gpu_quota: GpuLimits | None = None

    def __post_init__(self) -> None:
        for name in ("operation_seconds", "warm_seconds", "cold_start_seconds", "idle_seconds"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"`EndpointSettings.{name}` must be >= 0; got {value!r}.")
        for location, limits in (self.gpu_quota or {}).items():
            for kind, limit in limits.items():
                if gpu_named(kind) is None or limit < 0:
                    known = ", ".join(gpu.name for gpu in GPUS)
                    raise ValueError(
                        f"`EndpointSettings.gpu_quota` must hold numbers >= 0 of {known}; got {kind!r}: {limit!r} "
                        f"for {location!r}."
                    )

    def gpu_limit(self, location: str, gpu: str) -> int | None:
        """Returns the quota of an accelerator in a location; None is no limit."""
        return None if self.gpu_quota is None else self.gpu_quota.get(location, {}).get(gpu, 0)
