"""Model Registry of the emulated Vertex AI."""

from __future__ import annotations

import re
from typing import Any

from llmbeam_sandbox.core.checks import check_kms_key, check_labels
from llmbeam_sandbox.core.resource_filter import listed, paged
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError
from llmbeam_sandbox.models.catalog import read_container
from llmbeam_sandbox.vertex.deployments import deletion, operation
from llmbeam_sandbox.vertex.registry import Model, ModelVersion, check_aliases
from llmbeam_sandbox.vertex.state import VertexState, parent

_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)/models/([^/@]+)")


class Models:
    """The methods on models; called under the timeline's lock.

    Args:
        state: State of Vertex AI.
    """

    def __init__(self, state: VertexState) -> None:
        self._state = state

    def upload(self, call: RestCall) -> Reply:
        """Uploads a model, or a further version of one: its container and the source of its weights."""
        state, body = self._state, call.fields()
        fields = dict(body.get("model") or {})
        check_labels(fields.get("labels") or {})
        check_aliases(fields.get("versionAliases") or [])
        check_kms_key((fields.get("encryptionSpec") or {}).get("kmsKeyName"), call.names["location"])
        if not fields.get("displayName"):
            raise RestError(400, "The display_name of the Model is required.")
        container = fields.get("containerSpec") or {}
        if not container.get("imageUri"):
            raise RestError(400, "container_spec.image_uri is required for a custom Model.")
        name = self._name(call, str(body.get("parentModel") or ""), str(body.get("modelId") or ""))

        def finish(at: float) -> dict[str, Any]:
            model = state.models.setdefault(name, Model(name=name))
            version = model.add(fields, read_container(container), at)
            return {"model": name, "modelVersionId": version.id}

        answer = ("UploadModelResponse", finish)
        begun = operation(state, name, call.names["version"], "UploadModelOperationMetadata", answer)
        # Only a record is created.
        seconds = min(state.operations.seconds, 1.0)
        return json_reply(state.operations.start(begun, call.fault, seconds=seconds).resource())

    def list(self, call: RestCall) -> Reply:
        """Lists the models of a location, each with its default version."""
        where = parent(call.names["project"], call.names["location"])
        return listed(call, "models", where, self._state.models)

    def list_versions(self, call: RestCall) -> Reply:
        """Lists the versions of a model."""
        model, _ = self._model(call)
        found = [model.resource_of(version) for version in model.versions.values()]
        return json_reply(paged(call, "models", found))

    def get(self, call: RestCall) -> Reply:
        """Returns the default version of a model, or that of a number or an alias."""
        model, version = self._model(call)
        deployments = [
            {"endpoint": endpoint.name, "deployedModelId": one.id}
            for endpoint in self._state.endpoints_of(model)
            for one in endpoint.ready
            if one.model is version
        ]
        return json_reply(model.resource_of(version) | ({"deployedModels": deployments} if deployments else {}))

    def patch(self, call: RestCall) -> Reply:
        """Changes a version's names or labels."""
        model, version = self._model(call)
        fields, mask = call.fields(), [part for part in call.query.get("updateMask", "").split(",") if part]
        check_labels(fields.get("labels") or {})
        names = {"display_name": "displayName"}
        for name in (names.get(part, part) for part in mask):
            if name not in ("displayName", "description", "labels"):
                raise RestError(400, f"The field {name!r} of a Model cannot be updated.")
            version.fields[name] = fields.get(name) or ({} if name == "labels" else "")
        return json_reply(model.resource_of(version))

    def merge(self, call: RestCall) -> Reply:
        """Moves aliases to a version, and removes those that begin with "-" from it."""
        model, version = self._model(call)
        if call.names["model"].partition("@")[2] != version.id:
            raise RestError(400, f"The name of a Model with its version ID is required, e.g. {model.name}@1.")
        changes = call.fields().get("versionAliases") or []
        if not changes:
            raise RestError(400, "version_aliases is required.")
        model.merge(version, changes)
        return json_reply(model.resource_of(version))

    def delete(self, call: RestCall) -> Reply:
        """Deletes a model with all its versions; none of them may be deployed."""
        state = self._state
        model, _ = self._model(call)
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

    def _model(self, call: RestCall) -> tuple[Model, ModelVersion]:
        return self._state.model(call.names["project"], call.names["location"], call.names["model"])

    def _name(self, call: RestCall, parent_model: str, own: str) -> str:
        """Returns the name of the model to upload: a new one, or that of the parent of a further version."""
        if not parent_model:
            return self._state.new_name(call.names["project"], call.names["location"], "Model", own)
        named = _NAME.fullmatch(parent_model)
        if named is None or named[2] != call.names["location"]:
            raise RestError(400, f"Invalid parent_model for this location: {parent_model!r}.")
        return self._state.model(*named.groups())[0].name
