"""Contexts of the emulated metadata store of Vertex AI: experiments and their runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError
from llmbeam_sandbox.vertex.deployments import operation
from llmbeam_sandbox.vertex.state import VertexState, parent

_KEPT = ("displayName", "description", "labels", "metadata", "schemaTitle", "schemaVersion")


@dataclass(kw_only=True)
class Metadata:
    """The methods on metadata stores and contexts; called under the timeline's lock.

    Attributes:
        state: State of Vertex AI.
        contexts: Contexts by full name, as the API returns them; None is a metadata store.
    """

    state: VertexState
    contexts: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def create_store(self, call: RestCall) -> Reply:
        """Creates a metadata store."""
        where = parent(call.names["project"], call.names["location"])
        name = f"{where}/metadataStores/{call.query.get('metadataStoreId') or self.state.next_id()}"
        if name in self.contexts:
            raise RestError(409, f"MetadataStore {name} already exists.")

        def finish(at: float) -> dict[str, Any]:
            self.contexts[name] = None
            return {"name": name, "createTime": timestamp(at)}

        kind = "CreateMetadataStoreOperationMetadata"
        started = operation(self.state, name, call.names["version"], kind, ("MetadataStore", finish))
        return json_reply(self.state.operations.start(started, call.fault).resource())

    def create(self, call: RestCall) -> Reply:
        """Creates a context."""
        store = self._store(call)
        name = f"{store}/contexts/{call.query.get('contextId') or self.state.next_id()}"
        if name in self.contexts:
            raise RestError(409, f"Context {name} already exists.")
        return json_reply(self._put(name, call.fields()))

    def get(self, call: RestCall) -> Reply:
        """Returns a context."""
        return json_reply(self._context(self._name(call)))

    def patch(self, call: RestCall) -> Reply:
        """Changes a context, or creates it with `allowMissing`."""
        name = self._name(call)
        if call.query.get("allowMissing") != "true":
            self._context(name)
        if mask := call.query.get("updateMask"):
            raise RestError(400, f"The sandbox does not emulate the update_mask {mask!r} of a Context.")
        return json_reply(self._put(name, call.fields()))

    def add_children(self, call: RestCall) -> Reply:
        """Makes contexts the children of a context; those that are already are skipped."""
        name = self._name(call)
        self._context(name)
        for child in call.fields().get("childContexts") or ():
            _, project, _, location, rest = child.split("/", 4)
            parents = self._context(f"{parent(project, location)}/{rest}").setdefault("parentContexts", [])
            parents += [name] if name not in parents else []
        return json_reply({})

    def _store(self, call: RestCall) -> str:
        where = parent(call.names["project"], call.names["location"])
        store = f"{where}/metadataStores/{call.names['store']}"
        if store not in self.contexts:
            raise RestError(404, f"MetadataStore {store} is not found.")
        return store

    def _name(self, call: RestCall) -> str:
        return f"{self._store(call)}/contexts/{call.names['context']}"

    def _context(self, name: str) -> dict[str, Any]:
        if (found := self.contexts.get(name)) is None:
            raise RestError(404, f"Context {name} is not found.")
        return found

    def _put(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        now, old = timestamp(self.state.timeline.now()), self.contexts.get(name) or {}
        given = {key: value for key, value in fields.items() if key in _KEPT}
        made = {"createTime": now, **old, **given, "name": name, "updateTime": now}
        self.contexts[name] = made
        return made
