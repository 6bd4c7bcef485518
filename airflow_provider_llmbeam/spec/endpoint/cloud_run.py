"""Services on Cloud Run with a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.endpoint.base import EndpointSpec, argument_names, no_field_twice
from airflow_provider_llmbeam.spec.endpoint.gpu_memory import (
    BYTES_PER_NUMBER,
    CLOUD_RUN_LADDER,
    GpuMachine,
)
from airflow_provider_llmbeam.spec.fields.names import CloudRunGpu, Memory, ProgramName, ServiceAccount

#: Minimum cores and memory in GiB that Cloud Run requires with a GPU.
_MIN_CPU_AND_GIB = {"nvidia-l4": (4, 16), "nvidia-rtx-pro-6000": (20, 80)}
#: Numbers of cores that Cloud Run has with an L4, and the most memory in GiB with each. Those with larger GPUs are
#: not documented further. Source: docs.cloud.google.com/run/docs/configuring/services/cpu
_MAX_GIB_BY_CPU = {"nvidia-l4": {4: 16, 6: 24, 8: 32}}
#: vLLM serves Gemma 4 since 0.19.0 (github.com/vllm-project/vllm/releases/tag/v0.19.0). This image has CUDA 12.
#: Those without `-cu129` have CUDA 13 since 0.20 (llm-d/llm-d-kv-cache#584), and Cloud Run documents driver 535
#: (CUDA 12.2) for an L4 (docs.cloud.google.com/run/docs/configuring/services/gpu). On 2026-11-28 the newest
#: release is 0.33.0. That it has such an image is not established, and this one was not tried on Cloud Run.
IMAGE = "vllm/vllm-openai:v0.27.1-cu129"
#: Memory of vLLM and CUDA themselves. Assumed, not measured.
_PROCESS_GIB = 6
#: Largest number of concurrent requests per instance. Source: docs.cloud.google.com/run/docs/about-concurrency
MAX_CONCURRENCY = 1000


class CloudRunEndpoint(EndpointSpec):
    """vLLM as a service on Cloud Run, with one GPU per instance.

    Without `gpu_type` it uses the smallest GPU that fits the model, see docs/reference/gpu-memory.md; for a model
    that is not known there, an L4. Its further fields are those of `EndpointSpec`.

    Attributes:
        model: Model of the Hugging Face hub, `google/gemma-3-4b-it`, or a directory on Cloud Storage,
            `gs://bucket/path`.
        image: Image of the container, which serves the OpenAI API on port 8000.
        args: Arguments of the server, added to those set from other fields.
        gpu_type: Type of GPU, `nvidia-l4` or `nvidia-rtx-pro-6000`.
        gpu_count: Number of GPUs per instance.
        cpu: Number of cores of an instance; 4, 6 or 8 with an L4. `None`: 8 with an L4, 20 with an RTX PRO 6000.
        memory: Memory of an instance, e.g. `32Gi`; at most `16Gi` with 4 cores, `24Gi` with 6, `32Gi` with 8.
            `None`: `32Gi` with an L4, `80Gi` with an RTX PRO 6000.
        min_instances: Minimum number of instances, which are billed without requests, too. With 0 the service
            scales to zero.
        max_instances: Maximum number of instances.
        concurrency: Maximum number of concurrent requests per instance, at most 1,000. `None`: `max_num_seqs`, or
            1,000 if that is more.
        network: VPC network of outgoing requests.
        subnetwork: Subnetwork of that network.
        ingress: Origin of the requests that are accepted.
        invoker_service_account: Email of the account that may invoke the service, besides those that have the
            right already.
    """

    type: Literal["cloud_run"]
    image: Annotated[ProgramName, Field(min_length=1)] = IMAGE
    args: tuple[str, ...] = ()
    gpu_type: CloudRunGpu | None = None
    gpu_count: Annotated[int, Field(ge=1)] = 1
    cpu: Annotated[int, Field(ge=1)] | None = None
    memory: Memory | None = None
    min_instances: Annotated[int, Field(ge=0)] = 0
    max_instances: Annotated[int, Field(ge=1)] = 1
    concurrency: Annotated[int, Field(ge=1, le=MAX_CONCURRENCY)] | None = None
    network: str | None = None
    subnetwork: str | None = None
    ingress: Literal["all", "internal", "internal-and-cloud-load-balancing"] = "all"
    invoker_service_account: ServiceAccount | None = None

    _args = field_validator("args")(no_field_twice)

    @field_validator("args")
    @classmethod
    def _answers_to_its_name(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        if "--served-model-name" in argument_names(args):  # the probe would be refused while the GPU bills
            raise ValueError("has '--served-model-name', which `model` sets already")
        return args

    @field_validator("model")
    @classmethod
    def _hub_or_bucket(cls, model: str) -> str:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not re.fullmatch(r"gs://[^/]+/.+", model):
            raise ValueError(
                "must be a model of the Hugging Face hub, 'google/gemma-3-4b-it', or a directory on Cloud "
                "Storage, 'gs://bucket/path'"
            )
        return model

    @model_validator(mode="after")
    def _reachable_and_allowed(self) -> Self:
        if self.min_instances > self.max_instances:
            raise ValueError(
                f"has more instances at least (`min_instances`, {self.min_instances}) than at most "
                f"(`max_instances`, {self.max_instances})"
            )
        if self.subnetwork is not None and self.network is None:
            raise ValueError("has `subnetwork`, which needs `network`")
        self._check_token()
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        # Source of all three: cloud.google.com/run/docs/configuring/services/gpu
        if self.gpu_count != 1:
            raise ValueError(f"asks for {self.gpu_count} GPUs (`gpu_count`), and Cloud Run gives an instance one")
        least_cpu, least_gib = _MIN_CPU_AND_GIB.get(self.machine.accelerator_type, (1, 1))
        if self.resolved_cpu < least_cpu:
            raise ValueError(
                f"has {self.resolved_cpu} cores (`cpu`), and Cloud Run requires at least {least_cpu} with "
                f"{self.machine.accelerator_type}"
            )
        if self._memory_gib < least_gib:
            raise ValueError(
                f"has {self.resolved_memory} (`memory`), and Cloud Run requires at least {least_gib}Gi with "
                f"{self.machine.accelerator_type}"
            )
        self._check_cpu_values()
        self._check_memory(self.args, CLOUD_RUN_LADDER)
        return self._hub_files_fit()

    def _check_cpu_values(self) -> None:
        gpu, cpu = self.machine.accelerator_type, self.resolved_cpu
        most = _MAX_GIB_BY_CPU.get(gpu)
        if most is not None and cpu not in most:
            raise ValueError(f"has {cpu} cores (`cpu`), and Cloud Run has {_listed(most)} with {gpu}")
        if most is not None and self._memory_gib > most[cpu]:
            raise ValueError(
                f"has {self.resolved_memory} (`memory`), and Cloud Run allows at most {most[cpu]}Gi with {cpu} "
                "cores (`cpu`)"
            )

    def _hub_files_fit(self) -> Self:
        """Checks the memory for a model of the hub: the files of an instance are stored in its memory."""
        architecture = self.known_architecture
        if architecture is not None and not self.model.startswith("gs://"):
            weights_gib = architecture.parameters * BYTES_PER_NUMBER / 2**30
            if weights_gib + _PROCESS_GIB > self._memory_gib:
                raise ValueError(
                    f"has {self.resolved_memory} (`memory`), where files are kept too: {weights_gib:.0f} GiB of "
                    f"weights from the hub + {_PROCESS_GIB} GiB for vLLM do not fit; set a larger `memory`, or "
                    "keep the model on Cloud Storage, which is not copied"
                )
        return self

    @property
    def machine(self) -> GpuMachine:
        """Machine of an instance."""
        if self.gpu_type is not None:
            return GpuMachine(self.gpu_type, self.gpu_type, self.gpu_count)
        return self._smallest(CLOUD_RUN_LADDER) or CLOUD_RUN_LADDER[-1 if self.known_architecture else 0]

    @property
    def resolved_cpu(self) -> int:
        """Number of cores of an instance."""
        return self.cpu or (20 if self.machine.accelerator_type == "nvidia-rtx-pro-6000" else 8)

    @property
    def resolved_memory(self) -> str:
        """Memory of an instance, e.g. `32Gi`."""
        return self.memory or ("80Gi" if self.machine.accelerator_type == "nvidia-rtx-pro-6000" else "32Gi")

    @property
    def _memory_gib(self) -> float:
        number, unit = self.resolved_memory[:-2], self.resolved_memory[-2:]
        return int(number) / (1024 if unit == "Mi" else 1)


def _listed(numbers: Iterable[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}"
