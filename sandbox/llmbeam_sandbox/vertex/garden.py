"""Model Garden of the emulated Vertex AI: creates a model and an endpoint in one call."""

from __future__ import annotations

from typing import Any

from llmbeam_sandbox.core.checks import project_number
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError
from llmbeam_sandbox.models.catalog import Served, garden_model, is_on_hub, weights_failure
from llmbeam_sandbox.vertex.checks import check_id, read_hardware
from llmbeam_sandbox.vertex.deployments import (
    begin,
    check_quota,
    complete,
    operation,
    outcome,
    remove,
)
from llmbeam_sandbox.vertex.registry import Model
from llmbeam_sandbox.vertex.state import Deployed, Endpoint, VertexState, parent

IMAGE = "vertex-ai/pytorch-vllm-serve:latest"
_SIZED: tuple[tuple[str, str, int], ...] = (
    ("12b", "g2-standard-24", 2),
    ("27b", "g2-standard-48", 4),
    ("32b", "g2-standard-48", 4),
    ("70b", "g2-standard-96", 8),
)


class Garden:
    """The methods on publishers' models; called under the timeline's lock.

    Args:
        state: State of Vertex AI.
    """

    def __init__(self, state: VertexState) -> None:
        self._state = state

    def get(self, call: RestCall) -> Reply:
        """Returns a publisher's model and its deployment option."""
        model = garden_model(call.names["name"])
        if model is None:
            raise RestError(404, f"Publisher Model `{call.names['name']}` is not found.")
        option = {
            "deployTaskName": "vLLM",
            "containerSpec": {"imageUri": IMAGE, "args": [f"--model={model}"]},
            "dedicatedResources": _resources(model),
        }
        return json_reply(
            {
                "name": call.names["name"].partition("@")[0],
                "versionId": call.names["name"].partition("@")[2] or "001",
                "supportedActions": {"multiDeployVertex": {"multiDeployVertex": [option]}},
            }
        )

    def deploy(self, call: RestCall) -> Reply:
        """Uploads a model, creates an endpoint and deploys the model to it."""
        state, body = self._state, call.fields()
        project, location = call.names["project"], call.names["location"]
        model_config, endpoint_config = body.get("modelConfig") or {}, body.get("endpointConfig") or {}
        publisher_model, served = _served(body, model_config)
        resources = (body.get("deployConfig") or {}).get("dedicatedResources") or _resources(served.model)
        hardware = read_hardware({"minReplicaCount": 1, **resources}, location)
        check_quota(state, project_number(project), location, hardware, call.fault)
        where = parent(project, location)
        model_name = f"{where}/models/{_own(model_config, 'modelUserId') or state.next_id()}"
        name = f"{where}/endpoints/{_own(endpoint_config, 'endpointUserId') or state.next_id()}"
        for made, held in ((name, state.endpoints), (model_name, state.models)):
            if made in held or state.operations.running(made):
                raise RestError(409, f"The resource already exists: {made}")
        at = state.timeline.now()
        model = Model(name=model_name)
        fields = {
            "displayName": model_config.get("modelDisplayName") or served.name.replace("/", "_"),
            "containerSpec": model_config.get("containerSpec") or {"imageUri": IMAGE},
        }
        version = model.add(fields, served, at)
        endpoint = _endpoint(name, location, endpoint_config, at)
        if state.settings.garden_resources == "at_once":  # both remain when the deployment fails
            state.models[model_name], state.endpoints[name] = model, endpoint
        deployed = Deployed(
            id=state.next_id(),
            model=version,
            fields={"dedicatedResources": resources},
            hardware=hardware,
            created_at=at,
        )
        begin(state, endpoint, deployed)
        settle = complete(endpoint, deployed, {"0": 100})

        def finish(at: float) -> dict[str, Any]:
            settle(at)
            state.models[model_name], state.endpoints[name] = model, endpoint
            return {"publisherModel": publisher_model, "endpoint": name, "model": model_name}

        begun = operation(
            state,
            where,
            call.names["version"],
            "DeployOperationMetadata",
            ("DeployResponse", finish),
            failure=outcome(deployed, endpoint, call.fault),
            undo=remove(state, endpoint, deployed),
            publisherModel=publisher_model,
            destination=where,
            projectNumber=project_number(project),
            **({"modelId": state.settings.garden_model_id} if state.settings.garden_model_id else {}),
        )
        return json_reply(state.operations.start(begun, call.fault).resource())


def _served(body: dict[str, Any], config: dict[str, Any]) -> tuple[str, Served]:
    """Returns the requested publisher's model, and the model that its container will serve."""
    publisher_model, hub = str(body.get("publisherModelName") or ""), str(body.get("huggingFaceModelId") or "")
    if bool(publisher_model) == bool(hub):
        raise RestError(400, "Exactly one of publisher_model_name and hugging_face_model_id is required.")
    if hub:
        if not is_on_hub(hub):
            raise RestError(404, f"The Hugging Face model {hub!r} is not found, or Model Garden cannot deploy it.")
        failure = weights_failure(hub, has_token=bool(config.get("huggingFaceAccessToken")))
        publisher, _, name = hub.lower().partition("/")
        return f"publishers/hf-{publisher}/models/{name}", Served(model=hub, name=hub, failure=failure)
    model = garden_model(publisher_model)
    if model is None:
        raise RestError(404, f"Publisher Model `{publisher_model}` is not found.")
    if not config.get("acceptEula"):
        raise RestError(
            400,
            f"The End User License Agreement (EULA) of the model {publisher_model} has not been accepted: set "
            "`accept_eula` of the model config.",
            "FAILED_PRECONDITION",
        )
    return publisher_model, Served(model=model, name=model)


def _own(config: dict[str, Any], key: str) -> str:
    own = str(config.get(key) or "")
    if own:
        check_id(own, key)
    return own


def _endpoint(name: str, location: str, config: dict[str, Any], at: float) -> Endpoint:
    is_dedicated = not config.get("dedicatedEndpointDisabled")
    fields = {
        "displayName": config.get("endpointDisplayName") or name.rpartition("/")[2],
        **({"dedicatedEndpointEnabled": True} if is_dedicated else {}),
    }
    return Endpoint(name=name, location=location, fields=fields, created_at=at, updated_at=at)


def _resources(model: str) -> dict[str, Any]:
    """Returns the machine that Model Garden uses for a model when the caller names none."""
    sized = next(((machine, count) for word, machine, count in _SIZED if word in model.lower()), None)
    machine, count = sized or ("g2-standard-12", 1)
    spec = {"machineType": machine, "acceleratorType": "NVIDIA_L4", "acceleratorCount": count}
    return {"machineSpec": spec, "minReplicaCount": 1, "maxReplicaCount": 1}
