"""Uploaded models of the emulated Vertex AI."""

from __future__ import annotations

from typing import Any

from airflow_provider_llmbeam.sandbox.core.checks import check_labels
from airflow_provider_llmbeam.sandbox.core.resource_filter import listed
from airflow_provider_llmbeam.sandbox.core.responses import Reply, json_reply
from airflow_provider_llmbeam.sandbox.core.rest import RestCall, RestError
from airflow_provider_llmbeam.sandbox.models.catalog import read_container
from airflow_provider_llmbeam.sandbox.vertex.deployments import deletion, operation
from airflow_provider_llmbeam.sandbox.vertex.state import Model, VertexState, parent


class Models:
    """The methods on models; called under the timeline's lock.

    Args:
        state: State of Vertex AI.
    """

    def __init__(self, state: VertexState) -> None:
        self._state = state

    def upload(self, call: RestCall) -> Reply:
        """Uploads a model: its container and the source of its weights."""
        state, body = self._state, call.fields()
        fields = dict(body.get("model") or {})
        check_labels(fields.get("labels") or {})
        if body.get("parentModel"):
            raise RestError(501, "The sandbox does not emulate further versions of a model.")
        if not fields.get("displayName"):
            raise RestError(400, "The display_name of the Model is required.")
        container = fields.get("containerSpec") or {}
        if not container.get("imageUri"):
            raise RestError(400, "container_spec.image_uri is required for a custom Model.")
        own = str(body.get("modelId") or "")
        name = state.new_name(call.names["project"], call.names["location"], "Model", own)

        def finish(at: float) -> dict[str, Any]:
            served = read_container(container)
            state.models[name] = Model(name=name, fields=fields, served=served, created_at=at)
            return {"model": name, "modelVersionId": "1"}

        answer = ("UploadModelResponse", finish)
        begun = operation(state, name, call.names["version"], "UploadModelOperationMetadata", answer)
        # Only a record is created.
        seconds = min(state.operations.seconds, 1.0)
        return json_reply(state.operations.start(begun, call.fault, seconds=seconds).resource())

    def list(self, call: RestCall) -> Reply:
        """Lists the models of a location."""
        where = parent(call.names["project"], call.names["location"])
        return listed(call, "models", where, self._state.models)

    def get(self, call: RestCall) -> Reply:
        """Returns one model, with or without its version."""
        model = self._state.model(call.names["project"], call.names["location"], call.names["model"])
        deployments = [
            {"endpoint": endpoint.name, "deployedModelId": one.id}
            for endpoint in self._state.endpoints_of(model)
            for one in endpoint.ready
            if one.model is model
        ]
        return json_reply(model.resource() | ({"deployedModels": deployments} if deployments else {}))

    def patch(self, call: RestCall) -> Reply:
        """Changes a model's names or labels."""
        model = self._state.model(call.names["project"], call.names["location"], call.names["model"])
        fields, mask = call.fields(), [part for part in call.query.get("updateMask", "").split(",") if part]
        check_labels(fields.get("labels") or {})
        names = {"display_name": "displayName"}
        for name in (names.get(part, part) for part in mask):
            if name not in ("displayName", "description", "labels"):
                raise RestError(400, f"The field {name!r} of a Model cannot be updated.")
            model.fields[name] = fields.get(name) or ({} if name == "labels" else "")
        return json_reply(model.resource())

    def delete(self, call: RestCall) -> Reply:
        """Deletes a model that is not deployed."""
        state = self._state
        model = state.model(call.names["project"], call.names["location"], call.names["model"])
        endpoints = state.endpoints_of(model)
        if endpoints:
            raise RestError(
                400,
                f'The Model "{model.name}" is deployed or being deployed at the following Endpoint(s): '
                f"{', '.join(endpoint.name for endpoint in endpoints)}.",
                "FAILED_PRECONDITION",
            )
        begun = deletion(state, state.models, model.name, call.names["version"])
        return json_reply(state.operations.start(begun, call.fault).resource())
