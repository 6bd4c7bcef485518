"""A service on Cloud Run with a GPU, brought up for a job."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.endpoint.gpu_machine import CLOUD_RUN_LADDER, GpuMachine
from airflow_provider_llmbeam.spec.endpoint.gpu_memory import BYTES_PER_NUMBER, architecture_of, smallest_machine
from airflow_provider_llmbeam.spec.endpoint.served_model import (
    Location,
    Project,
    SecretVersion,
    ServiceAccount,
    check_memory,
    check_token,
    length_tokens_of,
    no_field_twice,
    sequences_of,
)

#: Cores and GiB that Cloud Run wants with a GPU.
_LEAST = {"nvidia-l4": (4, 16), "nvidia-rtx-pro-6000": (20, 80)}
#: Of vLLM and CUDA themselves. Assumed, not measured.
_PROCESS_GIB = 6


class CloudRunEndpoint(SpecModel):
    """vLLM as a service on Cloud Run, with one GPU per instance.

    Without `gpu_type` it is the smallest GPU that holds the model, see docs/gpu-memory.md; of a model that is not
    known there, an L4.

    Attributes:
        model: Of the Hugging Face hub, `google/gemma-3-4b-it`, or a directory on Cloud Storage, `gs://bucket/path`.
        project: Google Cloud project that is billed; left out, that of the Airflow connection or the credentials.
        locations: Regions, tried in order where one has no such GPU in stock or no quota for it.
        image: Of the container; it speaks OpenAI's API on port 8000.
        args: Added to those that follow from other fields.
        gpu_type: As Cloud Run calls it, `nvidia-l4` or `nvidia-rtx-pro-6000`.
        gpu_count: Per instance.
        cpu: Cores of an instance. `None`: 8 with an L4, 20 with an RTX PRO 6000.
        memory: Of an instance, e.g. `32Gi`. `None`: `32Gi` with an L4, `80Gi` with an RTX PRO 6000.
        min_instances: Kept running, and billed, without any request. With 0 the service scales to zero by itself.
        max_instances: At most.
        concurrency: Requests to one instance at a time. `None`: `max_num_seqs`.
        hf_token_secret: Of a gated model of the hub: the version of a secret of Secret Manager that holds a token.
        network: VPC network that the service sends through.
        subnetwork: Of that network.
        ingress: Whose requests arrive.
        service_account: Email of the account that the server runs as.
        invoker_service_account: Email of the account that may ask it, besides those who may by their own rights.
        max_model_length_tokens: Of a sequence, prompt and answer together. `None`: 8,192 for a known model.
        max_num_seqs: Sequences under way at once. `None`: as many as the memory holds, 64 at most.
        expires_after_seconds: From the start on; whatever happened to Airflow, the sweeper deletes it then.
    """

    type: Literal["cloud_run"]
    model: Annotated[str, Field(min_length=1)]
    project: Project | None = None
    locations: Annotated[tuple[Location, ...], Field(min_length=1)]
    image: Annotated[str, Field(min_length=1)] = "vllm/vllm-openai:v0.11.0"
    args: tuple[str, ...] = ()
    gpu_type: Annotated[str, Field(pattern=r"^nvidia-[a-z0-9-]+$")] | None = None
    gpu_count: Annotated[int, Field(ge=1)] = 1
    cpu: Annotated[int, Field(ge=1)] | None = None
    memory: Annotated[str, Field(pattern=r"^[1-9][0-9]*[GM]i$")] | None = None
    min_instances: Annotated[int, Field(ge=0)] = 0
    max_instances: Annotated[int, Field(ge=1)] = 1
    concurrency: Annotated[int, Field(ge=1, le=1000)] | None = None
    hf_token_secret: SecretVersion | None = None
    network: str | None = None
    subnetwork: str | None = None
    ingress: Literal["all", "internal", "internal-and-cloud-load-balancing"] = "all"
    service_account: ServiceAccount | None = None
    invoker_service_account: ServiceAccount | None = None
    max_model_length_tokens: Annotated[int, Field(ge=1)] | None = None
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    expires_after_seconds: Annotated[int, Field(ge=600)] = 6 * 3600

    _args = field_validator("args")(no_field_twice)

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
        check_token(self.model, self.hf_token_secret)
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        # Source of all three: cloud.google.com/run/docs/configuring/services/gpu
        if self.gpu_count != 1:
            raise ValueError(f"asks for {self.gpu_count} GPUs (`gpu_count`), and Cloud Run gives an instance one")
        least_cpu, least_gib = _LEAST.get(self.machine.accelerator_type, (1, 1))
        if self.resolved_cpu < least_cpu:
            raise ValueError(
                f"has {self.resolved_cpu} cores (`cpu`), and Cloud Run wants at least {least_cpu} with "
                f"{self.machine.accelerator_type}"
            )
        if self._memory_gib < least_gib:
            raise ValueError(
                f"has {self.resolved_memory} (`memory`), and Cloud Run wants at least {least_gib}Gi with "
                f"{self.machine.accelerator_type}"
            )
        check_memory(self, self.args, self.machine, CLOUD_RUN_LADDER)
        return self._hub_files_fit()

    def _hub_files_fit(self) -> Self:
        """Files of an instance are in its memory, and so is a model that is downloaded from the hub."""
        architecture = architecture_of(self.model)
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
        """What an instance runs on."""
        if self.gpu_type is not None:
            return GpuMachine(self.gpu_type, self.gpu_type, self.gpu_count)
        found = smallest_machine(self.model, CLOUD_RUN_LADDER, self.max_num_seqs, self.length_tokens or 1)
        return found or CLOUD_RUN_LADDER[-1 if architecture_of(self.model) else 0]

    @property
    def length_tokens(self) -> int | None:
        """Of a sequence; `None`: the server chooses."""
        return length_tokens_of(self)

    @property
    def sequences(self) -> int | None:
        """Under way at once; `None`: the server chooses."""
        return sequences_of(self, self.machine)

    @property
    def resolved_cpu(self) -> int:
        """Cores of an instance."""
        return self.cpu or (20 if self.machine.accelerator_type == "nvidia-rtx-pro-6000" else 8)

    @property
    def resolved_memory(self) -> str:
        """Memory of an instance, e.g. `32Gi`."""
        return self.memory or ("80Gi" if self.machine.accelerator_type == "nvidia-rtx-pro-6000" else "32Gi")

    @property
    def _memory_gib(self) -> float:
        number, unit = self.resolved_memory[:-2], self.resolved_memory[-2:]
        return int(number) / (1024 if unit == "Mi" else 1)
