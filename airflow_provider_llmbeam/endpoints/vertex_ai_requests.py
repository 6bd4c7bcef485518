"""What Vertex AI is asked for, as plain data for its clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.endpoints.resource import RunningOperation
from airflow_provider_llmbeam.spec.endpoint.identity import display_name, endpoint_id
from airflow_provider_llmbeam.spec.endpoint.vertex_ai import VertexEndpoint

#: Where vLLM listens, and its routes.
_PORT = 8080
_HEALTH_ROUTE = "/health"
_PREDICT_ROUTE = "/v1/chat/completions"
#: A model that is downloaded from the hub while its container starts takes its time.
_DEPLOYMENT_SECONDS = 3_600


def missing(spec: VertexEndpoint, *, endpoint: bool, model: bool, deployed: bool, running: bool) -> str | None:
    """The next step towards an endpoint with a model; `None`: there is none, or one is under way.

    Args:
        spec: What was asked for.
        endpoint: Whether it is there.
        model: Whether the model is there, as a resource of this project.
        deployed: Whether the endpoint has it.
        running: Whether an operation is under way.
    """
    if running or deployed:
        return None
    if spec.container_image is None and not (endpoint and model):
        # Model Garden makes both at once and takes no endpoint that is there.
        return "nothing usable" if endpoint or model else "deployment"
    if not endpoint:
        return "endpoint"
    return "replicas" if model else "model"


def garden_name(model: str) -> str | None:
    """A model of Model Garden as its API names it; `None`: one of the Hugging Face hub."""
    publisher, _, name = model.partition("/")
    return f"publishers/{publisher}/models/{name}" if "@" in model else None


def served_name(model: str) -> str:
    """What the model is: `google/gemma3@gemma-3-4b-it` is `google/gemma-3-4b-it`."""
    publisher, _, name = model.partition("/")
    return f"{publisher}/{name.rpartition('@')[2]}"


def dedicated_resources(spec: VertexEndpoint) -> dict[str, Any] | None:
    """The machines; `None`: Model Garden chooses."""
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


def deploy_request(plan: EndpointPlan, spec: VertexEndpoint, parent: str, hf_token: str | None) -> dict[str, Any]:
    """Fields of a `DeployRequest` of Model Garden. It takes no labels: the display names stand for them."""
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
        "destination": parent,
        "model_config": model,
        "endpoint_config": {
            "endpoint_display_name": name,
            "endpoint_user_id": endpoint_id(plan.key),
            "dedicated_endpoint_enabled": spec.dedicated_dns,
        },
        **({} if machines is None else {"deploy_config": {"dedicated_resources": machines}}),
    }


def endpoint_resource(plan: EndpointPlan, spec: VertexEndpoint) -> dict[str, Any]:
    """Fields of an `Endpoint`."""
    private = {"network": spec.network} if spec.network else {"dedicated_endpoint_enabled": spec.dedicated_dns}
    return {"display_name": display_name(plan.labels), "labels": dict(plan.labels), **private}


def model_resource(plan: EndpointPlan, spec: VertexEndpoint, hf_token: str | None) -> dict[str, Any]:
    """Fields of a `Model`: a container that speaks OpenAI's API."""
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
    }


def deployed_model(plan: EndpointPlan, spec: VertexEndpoint, model_name: str) -> dict[str, Any]:
    """Fields of a `DeployedModel`."""
    account = {"service_account": spec.service_account} if spec.service_account else {}
    return {
        # Given by us: two tries that ask at once deploy it once.
        "id": "1",
        "model": model_name,
        "display_name": display_name(plan.labels),
        "dedicated_resources": dedicated_resources(spec),
        **account,
    }


def _vllm_args(spec: VertexEndpoint) -> list[str]:
    machine = spec.machine
    wanted: Mapping[str, Any] = {
        "--model": spec.model,
        "--port": _PORT,
        "--max-model-len": spec.length_tokens,
        "--max-num-seqs": spec.sequences,
        "--tensor-parallel-size": machine.accelerator_count if machine else None,
    }
    return [f"{name}={value}" for name, value in wanted.items() if value is not None]


#: Of the metadata of an operation: what it does to the resource that it is under.
_REMOVES = frozenset({"DeleteOperationMetadata", "UndeployModelOperationMetadata"})
#: What a deployment from Model Garden is known by, as long as there is no endpoint yet.
GARDEN_METADATA = "DeployOperationMetadata"


def running_operation(name: str, metadata_type: str) -> RunningOperation:
    """Tells what an operation does by the type of its metadata."""
    return RunningOperation(name, makes=metadata_type.rpartition(".")[2] not in _REMOVES)
