"""Secret Manager's REST API, as google-cloud-secret-manager calls it."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable

from aiohttp import web

from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service
from llmbeam_sandbox.secret_manager.responses import (
    WORDING,
    page_of,
    secret_resource,
    version_resource,
)
from llmbeam_sandbox.secret_manager.state import Secret, SecretStore, number_of

METHODS = Methods(
    names=(
        "secretmanager.secrets.addVersion",
        "secretmanager.secrets.create",
        "secretmanager.secrets.get",
        "secretmanager.secrets.list",
        "secretmanager.versions.access",
        "secretmanager.versions.list",
    )
)
MAX_PAYLOAD_BYTES = 65_536
_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_SECRETS = r"/v1/projects/(?P<project>[^/]+)/secrets"
_SECRET = rf"{_SECRETS}/(?P<secret>[^/:]+)"


class SecretManager:
    """The methods of Secret Manager.

    Args:
        store: The secrets.
    """

    def __init__(self, store: SecretStore) -> None:
        self._store = store

    def routes(self) -> list[Route]:
        """Returns the methods and their paths."""
        versions = rf"{_SECRET}/versions"
        return [
            _route("POST", _SECRETS, "secretmanager.secrets.create", self._create),
            _route("GET", _SECRETS, "secretmanager.secrets.list", self._list),
            _route("GET", _SECRET, "secretmanager.secrets.get", self._get),
            _route("POST", f"{_SECRET}:addVersion", "secretmanager.secrets.addVersion", self._add_version),
            _route("GET", versions, "secretmanager.versions.list", self._list_versions),
            _route(
                "GET", rf"{versions}/(?P<version>[^/:]+):access", "secretmanager.versions.access", self._access
            ),
        ]

    def _create(self, call: RestCall) -> Reply:
        name, fields = call.query.get("secretId", ""), call.fields()
        if not _NAME.fullmatch(name):
            raise RestError(
                400, f"The provided Secret ID [{name}] does not match the expected format [[a-zA-Z_0-9]+]"
            )
        if "replication" not in fields:
            raise RestError(400, "Field [Secret.replication] is required.")
        return json_reply(secret_resource(self._store.add(call.names["project"], name, fields)))

    def _list(self, call: RestCall) -> Reply:
        found = [secret_resource(secret) for secret in self._store.of_project(call.names["project"])]
        return json_reply(page_of(call, "secrets", found))

    def _get(self, call: RestCall) -> Reply:
        return json_reply(secret_resource(self._secret(call)))

    def _add_version(self, call: RestCall) -> Reply:
        secret, payload = self._secret(call), call.fields().get("payload") or {}
        try:
            data = base64.b64decode(str(payload.get("data") or ""), validate=True)
        except binascii.Error as error:
            raise RestError(
                400, "Invalid value at 'payload.data' (TYPE_BYTES), Base64 decoding failed."
            ) from error
        if not 0 < len(data) <= MAX_PAYLOAD_BYTES:
            raise RestError(400, f"The Secret Payload must be 1 to {MAX_PAYLOAD_BYTES} bytes; got {len(data)}.")
        given = payload.get("dataCrc32c")
        if given is not None and int(given) != _crc32c(data):
            raise RestError(400, "The checksum in the request does not match that of the Secret Payload.")
        return json_reply(version_resource(secret, self._store.add_version(secret, data)))

    def _list_versions(self, call: RestCall) -> Reply:
        secret = self._secret(call)
        numbers = range(len(secret.versions), 0, -1)
        return json_reply(page_of(call, "versions", [version_resource(secret, number) for number in numbers]))

    def _access(self, call: RestCall) -> Reply:
        secret, version = self._secret(call), call.names["version"]
        number = number_of(secret, version)
        if number is None:
            raise RestError(404, f"Secret Version [{secret.path}/versions/{version}] not found.")
        data, _ = secret.versions[number - 1]
        payload = {"data": base64.b64encode(data).decode(), "dataCrc32c": str(_crc32c(data))}
        return json_reply({"name": f"{secret.path}/versions/{number}", "payload": payload})

    def _secret(self, call: RestCall) -> Secret:
        return self._store.get(call.names["project"], call.names["secret"])


def routes(backend: Backend, store: SecretStore) -> list[web.RouteDef]:
    """Returns the routes of Secret Manager."""
    service = Service(backend, WORDING, SecretManager(store).routes(), is_slow=False)
    return [web.route("*", "/v1/projects/{project}/secrets{tail:.*}", service.serve)]


def _route(verb: str, path: str, method: Method, work: Callable[[RestCall], Reply]) -> Route:
    return Route(verb=verb, pattern=re.compile(path), method=method, work=work)


def _crc32c(data: bytes) -> int:
    import google_crc32c

    return int(google_crc32c.value(data))
