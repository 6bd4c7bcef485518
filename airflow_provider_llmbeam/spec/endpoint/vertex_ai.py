"""Endpoints of Vertex AI."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.endpoint.base import EndpointSpec, no_field_twice
from airflow_provider_llmbeam.spec.endpoint.gpu_memory import (
    MACHINES,
    VERTEX_LADDER,
    GpuMachine,
)
from airflow_provider_llmbeam.spec.fields.names import (
    AcceleratorType,
    ChatRoute,
    MachineType,
    Network,
    ProgramName,
    ProjectId,
)
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel

#: Fields that describe the container of a model, or its weights.
_OF_THE_CONTAINER = (
    "accept_eula",
    "container_args",
    "container_env",
    "container_image",
    "hf_token_secret",
    "max_model_length_tokens",
    "max_num_seqs",
)
#: Fields that no `DeployRequest` of Model Garden has; its `container_spec` would replace the whole container.
_NOT_OF_MODEL_GARDEN = (
    "max_model_length_tokens",
    "max_num_seqs",
    "network",
    "service_account",
    "kms_key_name",
)
_OF_THE_MACHINE = ("spot", "min_replicas", "max_replicas")


class Canary(SpecModel):
    """A second registered model on the machines of its own that answers some requests of an endpoint.

    The report counts the answers of both versions apart, and each answer has the name of its version in the column
    of the model. `PromoteModelOperator` and `RollBackModelOperator` change the percentage, or end the canary.

    Attributes:
        model: Version of a registered model, `projects/…/locations/…/models/…@candidate`.
        percent: Percentage of the requests that it answers; the model of the endpoint answers the others.
    """

    model: str
    percent: Annotated[int, Field(ge=1, le=99)] = 10


class VertexEndpoint(EndpointSpec):
    """An endpoint of Vertex AI with a deployed model.

    Without `machine_type` it uses the smallest machine that fits the model, see docs/reference/gpu-memory.md; for
    a model that is not known there, Model Garden chooses. It also sets the limits of its server, and takes no
    network, no account and no key: `max_model_length_tokens`, `max_num_seqs`, `network`, `service_account` and
    `kms_key_name` need `container_image`. The further fields are those of `EndpointSpec`.

    Attributes:
        model: Model of Model Garden, `google/gemma3@gemma-3-4b-it`, or of the Hugging Face hub,
            `google/gemma-3-4b-it`, or of the Model Registry, `projects/…/locations/…/models/…@champion`, with a
            version or an alias of it, by default the alias `default`. A registered model brings its own
            container, which must serve chat completions; it needs `machine_type`, and its region as `locations`.
        canary: Second registered model that answers a percentage of the requests, on machines of its own; it needs
            a registered `model`.
        machine_type: Machine type, e.g. `g2-standard-12`.
        accelerator_type: Type of GPU, e.g. `NVIDIA_L4`; implied by machine types that include GPUs.
        accelerator_count: Number of GPUs per replica; the model is split over them.
        min_replicas: Minimum number of replicas, which are billed without requests, too. This, `max_replicas` and
            `spot` need `machine_type` where Model Garden chooses the machine.
        max_replicas: Maximum number of replicas.
        spot: Whether to use cheaper machines that can be preempted at any time.
        dedicated_dns: Whether the endpoint gets its own address: larger requests, longer answers, isolated from
            other endpoints.
        network: VPC network that alone reaches the endpoint, `projects/NUMBER/global/networks/NAME`: by peering
            (private services access), or by a `forwarding_address`.
        forwarding_address: Host of the forwarding rule in `network` that leads to the service attachment of the
            endpoint (Private Service Connect): a name or an IP address, without a scheme. Requests use TLS, whose
            certificate the machines that send them must trust.
        forwarding_projects: Projects whose forwarding rules may lead to the endpoint.
        reachable: Whether the machines that run Airflow and the jobs reach the private address. Otherwise the
            model is not asked before the tasks start, and their runner must be in the network.
        chat_route: Method of the endpoint that takes a chat, see `VertexEndpointModel`. `None`:
            `chat_completions` for Model Garden; for another container the one that answers a small request, or
            `raw_predict` if Airflow cannot reach the endpoint.
        container_image: Image of a custom server with the OpenAI API, e.g. vLLM, instead of Model Garden. Its
            `hf_token_secret` becomes a plain variable of the container, which everyone with access to the model
            can read: use a token that can only read models, or Cloud Run, which reads the secret itself.
        container_args: Arguments of the container, added to those set from other fields.
        container_env: Environment of the container. Never put a key here: everyone with access to the model can
            read it.
        accept_eula: Whether you accept the terms of the model; Model Garden deploys Gemma only then.
    """

    type: Literal["vertex"]
    canary: Canary | None = None
    machine_type: MachineType | None = None
    accelerator_type: AcceleratorType | None = None
    accelerator_count: Annotated[int, Field(ge=1, le=16)] | None = None
    min_replicas: Annotated[int, Field(ge=1)] = 1
    max_replicas: Annotated[int, Field(ge=1)] = 1
    spot: bool = False
    dedicated_dns: bool = True
    network: Network | None = None
    forwarding_address: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*$")] | None = None
    forwarding_projects: tuple[ProjectId, ...] = ()
    reachable: bool = False
    chat_route: ChatRoute | None = None
    container_image: Annotated[ProgramName, Field(min_length=1)] | None = None
    container_args: tuple[str, ...] = ()
    container_env: dict[str, str] = Field(default_factory=dict)
    accept_eula: bool = False

    _args = field_validator("container_args")(no_field_twice)

    @field_validator("model")
    @classmethod
    def _one_of_three_names(cls, model: str) -> str:
        if RegisteredModel.read(model) is None and not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w.-]+)?", model):
            raise ValueError(
                "must be a model of Model Garden, 'google/gemma3@gemma-3-4b-it', or of the Hugging Face hub, "
                "'google/gemma-3-4b-it', or of the Model Registry, 'projects/…/locations/…/models/…@champion'"
            )
        return model

    @field_validator("container_env")
    @classmethod
    def _no_token(cls, variables: dict[str, str]) -> dict[str, str]:
        if found := sorted({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} & variables.keys()):
            raise ValueError(f"has {found[0]!r}: name the secret that holds it in `hf_token_secret`")
        return variables

    @model_validator(mode="after")
    def _registered_model_brings_its_container(self) -> Self:
        registered = RegisteredModel.read(self.model)
        if registered is None:
            return self
        for name in _OF_THE_CONTAINER:
            if getattr(self, name) not in (None, (), {}, False):
                raise ValueError(f"has `{name}`, which the container of the registered model {self.model} sets")
        if self.locations != (registered.location,):
            raise ValueError(
                f"has `locations` {', '.join(self.locations)}, and the registered model {self.model} can only be "
                f"deployed in {registered.location}"
            )
        if self.machine_type is None:
            raise ValueError(f"needs `machine_type`: how much memory {self.model} takes is not known")
        return self

    @model_validator(mode="after")
    def _canary_is_another_version(self) -> Self:
        if self.canary is None:
            return self
        registered, canary = RegisteredModel.read(self.model), RegisteredModel.read(self.canary.model)
        if registered is None or canary is None or canary.location != registered.location:
            raise ValueError(
                "has `canary`, which needs two registered models of one region, "
                f"'projects/…/locations/…/models/…@3'; got {self.model!r} and {self.canary.model!r}"
            )
        if canary == registered:
            raise ValueError(f"has the same version, {self.model!r}, as its model and as its `canary`")
        # Which of the two answered is in a header of `rawPredict` alone, and a private address is that of one.
        if self.is_peered or self.chat_route == "chat_completions":
            raise ValueError(
                "has `canary`, which needs `chat_route` 'raw_predict' and no peered `network`: only there does "
                "Vertex AI split the requests and name the version that answered"
            )
        return self

    @model_validator(mode="after")
    def _machine_and_accelerator_agree(self) -> Self:
        known = MACHINES.get(self.machine_type or "")
        given = (self.accelerator_type, self.accelerator_count)
        if self.machine_type is None:
            if given != (None, None):
                raise ValueError("has an accelerator (`accelerator_type`), which needs `machine_type`")
            if self.container_image is not None and self.known_architecture is None:
                raise ValueError(
                    f"needs `machine_type`: how much memory {self.model} takes is not known, and a custom "
                    "container has no default"
                )
        elif known is None:
            if None in given:
                raise ValueError(
                    f"needs `accelerator_type` and `accelerator_count` for `machine_type` {self.machine_type!r}, "
                    "which includes no known GPUs"
                )
        elif given[0] not in (None, known.accelerator_type) or given[1] not in (None, known.accelerator_count):
            raise ValueError(
                f"has `machine_type` {self.machine_type!r}, which comes with {known.accelerator_count} × "
                f"{known.accelerator_type}, and asks for {given[1] or known.accelerator_count} × "
                f"{given[0] or known.accelerator_type}"
            )
        return self

    @model_validator(mode="after")
    def _container_or_garden(self) -> Self:
        if self.container_image is None:
            if self.container_args or self.container_env:
                raise ValueError("has `container_args` or `container_env`, which need `container_image`")
            if self.model.startswith("google/gemma") and "@" in self.model and not self.accept_eula:
                raise ValueError(
                    "deploys Gemma, which Model Garden does only if you accept its terms "
                    "(ai.google.dev/gemma/terms): set `accept_eula`"
                )
            if RegisteredModel.read(self.model) is None:
                self._check_model_garden_takes_it()
        elif "@" in self.model:
            raise ValueError(
                "has `container_image`, which takes a model of the Hugging Face hub, and `model` "
                f"{self.model!r} is one of Model Garden"
            )
        self._check_token()
        return self

    @model_validator(mode="after")
    def _one_private_address(self) -> Self:
        if (self.forwarding_address is None) != (not self.forwarding_projects):
            raise ValueError("needs both `forwarding_address` and `forwarding_projects`, or none of them")
        for name in ("forwarding_address", "reachable"):
            if getattr(self, name) and self.network is None:
                raise ValueError(f"has `{name}`, which needs `network`")
        if self.is_peered and self.chat_route == "chat_completions":
            raise ValueError(
                "has `chat_route` 'chat_completions', and an endpoint in a peered network only passes requests "
                "on: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"has a minimum of replicas (`min_replicas`, {self.min_replicas}) above the maximum "
                f"(`max_replicas`, {self.max_replicas})"
            )
        if RegisteredModel.read(self.model) is None:
            self._check_memory(self.container_args, VERTEX_LADDER)
        return self

    def _check_model_garden_takes_it(self) -> None:
        """Rejects fields that a deployment from Model Garden would drop."""
        for name in _NOT_OF_MODEL_GARDEN:
            if getattr(self, name) is not None:
                raise ValueError(f"has `{name}`, which Model Garden does not take: it needs `container_image`")
        for name in _OF_THE_MACHINE:
            if self.machine is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"has `{name}`, which needs `machine_type`: how much memory {self.model} takes is not known, "
                    "and Model Garden chooses its machines"
                )

    @property
    def is_peered(self) -> bool:
        """Whether it is reached by peering, at an address of its own."""
        return self.network is not None and self.forwarding_address is None

    @property
    def chat_routes(self) -> tuple[ChatRoute, ...]:
        """Methods that may take a chat, the most likely first."""
        if self.chat_route is not None:
            return (self.chat_route,)
        if self.is_peered or self.canary is not None:
            return ("raw_predict",)
        if self.container_image is None and RegisteredModel.read(self.model) is None:
            return ("chat_completions",)
        # `chat/completions` is "Model Garden only".
        # Source: cloud.google.com/vertex-ai/docs/predictions/private-service-connect
        return ("raw_predict", "chat_completions")

    @property
    def deployed_models(self) -> dict[str, str]:
        """Models to deploy by the id of the deployed model, which is fixed: two tries deploy each model once."""
        return {"1": self.model, **({} if self.canary is None else {"2": self.canary.model})}

    @property
    def traffic_split(self) -> dict[str, int]:
        """Percentage of the requests of each deployed model, by its id."""
        percent = 0 if self.canary is None else self.canary.percent
        return {"1": 100 - percent, **({"2": percent} if percent else {})}

    @property
    def machine(self) -> GpuMachine | None:
        """Machine of a replica; `None`: Model Garden chooses."""
        if self.machine_type is None:
            return self._smallest(VERTEX_LADDER)
        if known := MACHINES.get(self.machine_type):
            return known
        return GpuMachine(self.machine_type, self.accelerator_type or "", self.accelerator_count or 1)
