"""Requests to Vertex AI as plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.endpoints.resource import RunningOperation
from airflow_provider_llmbeam.spec.endpoint.identity import display_name, endpoint_id
from airflow_provider_llmbeam.spec.endpoint.vertex_ai import VertexEndpoint
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel

#: Port and routes of vLLM.
_PORT = 8080
_HEALTH_ROUTE = "/health"
_PREDICT_ROUTE = "/v1/chat/completions"
#: Time limit for a container that downloads its model from the hub when it starts.
_DEPLOYMENT_SECONDS = 3_600


#: Steps that deploy a model, with the id of the deployed model.
DEPLOYING_STEPS = {"replicas": "1", "canary": "2"}


def missing(
    spec: VertexEndpoint, *, endpoint: bool, model: bool, deployed: Collection[str], running: bool
) -> str | None:
    """Returns the next resource to create; `None` if there is none or an operation is running.

    A registered model exists before its endpoint, and is not deleted with it.

    Args:
        spec: Spec of the endpoint.
        endpoint: Whether the endpoint exists.
        model: Whether the model exists as a resource of this project.
        deployed: Ids of the models that are deployed to the endpoint.
        running: Whether an operation is running.
    """
    if running or (is_from_garden(spec) and deployed):
        return None
    if is_from_garden(spec):
        # Model Garden creates endpoint, model and replicas with one request, and accepts no existing endpoint.
        return "nothing usable" if endpoint or model else "deployment"
    wanted = spec.deployed_models.keys() - set(deployed)
    step = next((step for step, own in DEPLOYING_STEPS.items() if own in wanted), None)
    if step is not None and not endpoint:
        return "endpoint"
    has_model = model or RegisteredModel.read(spec.model) is not None
    return step if has_model or step is None else "model"


def is_from_garden(spec: VertexEndpoint) -> bool:
    """Whether Model Garden deploys the model."""
    return spec.container_image is None and RegisteredModel.read(spec.model) is None


def may_be_model(publisher_model: str, spec: VertexEndpoint) -> bool:
    """Whether an operation's `publisher_model` is the model of an endpoint, or one that cannot be read.

    Args:
        publisher_model: `publishers/{publisher}/models/{model}@{version}`, or
            `publishers/hf-{author}/models/{model}@001` for a model of the Hugging Face hub.
        spec: Spec of the endpoint.

    Source: docstrings of `DeployRequest` and `DeployOperationMetadata`, google-cloud-aiplatform 1.165.
    """
    garden = garden_name(spec.model)
    own = _publisher_model(garden or "publishers/hf-{}/models/{}".format(*spec.model.split("/")))
    other = _publisher_model(publisher_model)
    if other is None or own is None:
        return True
    versions = {own[1], other[1]} if garden else {""}
    return own[0] == other[0] and ("" in versions or len(versions) == 1)


def _publisher_model(name: str) -> tuple[list[str], str] | None:
    """Returns publisher and model, and the version, which may be empty; `None` for another form."""
    name, _, version = name.lower().partition("@")
    parts = name.split("/")
    return (parts[1::2], version) if len(parts) == 4 and parts[0] == "publishers" else None


def serves_other_version(spec: VertexEndpoint, deployed: Iterable[tuple[str, str]]) -> bool:
    """Returns whether an endpoint has another registered model, or another version, than those of its spec.

    Args:
        spec: Spec of the endpoint.
        deployed: Name, with or without the version, and number of the version of each deployed model.
    """
    wanted = [RegisteredModel.read(model) for model in spec.deployed_models.values()]
    own = [version_of(one.model, one.version) for one in wanted if one is not None]
    return bool(own) and any(version_of(name, version) not in own for name, version in deployed)


def version_of(name: str, version: str) -> tuple[str, str]:
    """Returns id and version of a model: Vertex AI names the project of a resource by its number.

    Args:
        name: Resource name, with or without the version.
        version: Number of the version.
    """
    return name.partition("@")[0].rpartition("/")[2], version


def split_of_deployment(spec: VertexEndpoint, own: str, deployed: Collection[str]) -> dict[str, int]:
    """Returns the `traffic_split` of a request that deploys a model: `0` is the id of that model.

    Args:
        spec: Spec of the endpoint.
        own: Id of the model to deploy.
        deployed: Ids of the models that are deployed.
    """
    shares = {"0" if key == own else key: share for key, share in spec.traffic_split.items()}
    return shares if shares.keys() - {"0"} <= set(deployed) else {"0": 100}


def garden_name(model: str) -> str | None:
    """Returns the name of a model in Model Garden; `None` for a model of the Hugging Face hub."""
    publisher, _, name = model.partition("/")
    return f"publishers/{publisher}/models/{name}" if "@" in model else None


def served_name(model: str) -> str:
    """Returns the name under which answers are kept: `google/gemma-3-4b-it` for `google/gemma3@gemma-3-4b-it`.

    That of a registered model has its version, so that no answer is used for another version.
    """
    if RegisteredModel.read(model) is not None:
        return model
    publisher, _, name = model.partition("/")
    return f"{publisher}/{name.rpartition('@')[2]}"


def dedicated_resources(spec: VertexEndpoint) -> dict[str, Any] | None:
    """Returns the machines; `None` if Model Garden chooses them."""
    machine = spec.machine
    if machine is None:
        return None
    return {
        "machine_spec": {
            "machine_type": machine.machine_type,
            "accelerator_type": machine.accelerator_type,
            "accelerator_count": machine.accelerator_count,
        },
        "min_replica_count": spec.min_replicas,
        "max_replica_count": spec.max_replicas,
        "spot": spec.spot,
    }


def deploy_request(plan: EndpointPlan, spec: VertexEndpoint, hf_token: str | None) -> dict[str, Any]:
    """Returns the fields of a `DeployRequest`. It accepts no labels, so the display names encode them.

    `hugging_face_access_token` is the field for a token; Model Garden accepts no reference to a secret.
    """
    name, garden = display_name(plan.labels), garden_name(spec.model)
    model: dict[str, Any] = {
        "accept_eula": spec.accept_eula,
        "model_display_name": name,
        "model_user_id": endpoint_id(plan.key),
    }
    if hf_token is not None:
        model["hugging_face_access_token"] = hf_token
    machines = dedicated_resources(spec)
    return {
        **({"publisher_model_name": garden} if garden else {"hugging_face_model_id": spec.model}),
        "model_config": model,
        "endpoint_config": {
            "endpoint_display_name": name,
            "endpoint_user_id": endpoint_id(plan.key),
            "dedicated_endpoint_disabled": not spec.dedicated_dns,
        },
        **({} if machines is None else {"deploy_config": {"dedicated_resources": machines}}),
    }


def endpoint_resource(plan: EndpointPlan, spec: VertexEndpoint) -> dict[str, Any]:
    """Returns the fields of an `Endpoint`."""
    address: dict[str, Any] = {"dedicated_endpoint_enabled": spec.dedicated_dns}
    if spec.is_peered:
        address = {"network": spec.network}
    elif spec.forwarding_address is not None:
        projects = list(spec.forwarding_projects)
        config = {"enable_private_service_connect": True, "project_allowlist": projects}
        address = {"private_service_connect_config": config}
    return {"display_name": display_name(plan.labels), "labels": dict(plan.labels), **address, **_encryption(spec)}


def model_resource(plan: EndpointPlan, spec: VertexEndpoint, hf_token: str | None) -> dict[str, Any]:
    """Returns the fields of a `Model`: a container that serves the OpenAI API.

    The token becomes a plain variable of the container, which everyone who may read the model
    (`aiplatform.models.get`) can read: `ModelContainerSpec` has no reference to a secret. Its `EnvVar` has only a
    `value`; in google-cloud-aiplatform 1.165 only `ReasoningEngineSpec` has a `secret_env`.
    """
    variables = {**spec.container_env, **({"HF_TOKEN": hf_token} if hf_token else {})}
    return {
        "display_name": display_name(plan.labels),
        "labels": dict(plan.labels),
        "container_spec": {
            "image_uri": spec.container_image,
            "args": [*_vllm_args(spec), *spec.container_args],
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "ports": [{"container_port": _PORT}],
            "predict_route": _PREDICT_ROUTE,
            "health_route": _HEALTH_ROUTE,
            "deployment_timeout": {"seconds": _DEPLOYMENT_SECONDS},
        },
        **_encryption(spec),
    }


def deployed_model(plan: EndpointPlan, spec: VertexEndpoint, own: str, model_name: str) -> dict[str, Any]:
    """Returns the fields of a `DeployedModel` with an id of ours."""
    account = {"service_account": spec.service_account} if spec.service_account else {}
    return {
        # A fixed id: two tries that send the request at the same time deploy the model once.
        "id": own,
        "model": model_name,
        "display_name": display_name(plan.labels),
        "dedicated_resources": dedicated_resources(spec),
        **account,
    }


def _encryption(spec: VertexEndpoint) -> dict[str, Any]:
    """Returns the field with the key; a deployed model and its replicas have that of their endpoint."""
    return {} if spec.kms_key_name is None else {"encryption_spec": {"kms_key_name": spec.kms_key_name}}


def _vllm_args(spec: VertexEndpoint) -> list[str]:
    machine = spec.machine
    arguments: Mapping[str, Any] = {
        "--model": spec.model,
        "--port": _PORT,
        "--max-model-len": spec.length_tokens,
        "--max-num-seqs": spec.sequences,
        "--tensor-parallel-size": machine.accelerator_count if machine else None,
    }
    return [f"{name}={value}" for name, value in arguments.items() if value is not None]


#: Types of the metadata of removing operations.
_REMOVING_METADATA = frozenset({"DeleteOperationMetadata", "UndeployModelOperationMetadata"})
#: Type of the metadata of a deployment from Model Garden, which belongs to no endpoint until that exists.
GARDEN_METADATA = "DeployOperationMetadata"


def running_operation(name: str, metadata_type: str) -> RunningOperation:
    """Returns an operation; the type of its metadata tells whether it creates or removes."""
    return RunningOperation(name, creates=metadata_type.rpartition(".")[2] not in _REMOVING_METADATA)
