"""Secret Manager's REST API, as google-cloud-secret-manager calls it."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from airflow_provider_llmbeam.sandbox.core.backend import Backend
from airflow_provider_llmbeam.sandbox.core.clock import Clock
from airflow_provider_llmbeam.sandbox.core.faults import Method
from airflow_provider_llmbeam.sandbox.core.responses import Reply, json_reply
from airflow_provider_llmbeam.sandbox.core.rest import STATUSES, RestCall, RestError, Route, Service, StatusWording
from airflow_provider_llmbeam.sandbox.storage.state import timestamp

MAX_PAYLOAD_BYTES = 65_536
_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
_SECRETS = r"/v1/projects/(?P<project>[^/]+)/secrets"
_SECRET = rf"{_SECRETS}/(?P<secret>[^/:]+)"


WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        403: "Permission 'secretmanager.versions.access' denied for resource (or it may not exist).",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=RestError(429, "Quota exceeded for quota metric 'Access requests' and limit 'per minute'."),
)


@dataclass(slots=True, kw_only=True)
class Secret:
    """A secret and what each version of it holds, the first one first."""

    project: str
    name: str
    created_at: float
    fields: dict[str, Any]
    versions: list[tuple[bytes, float]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Its full name."""
        return f"projects/{self.project}/secrets/{self.name}"


class SecretManager:
    """The methods of Secret Manager over secrets in memory.

    Args:
        clock: Seconds since the epoch, for the times of creation.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._secrets: dict[tuple[str, str], Secret] = {}

    def routes(self) -> list[Route]:
        """Return the methods and where they are found."""
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

    def has(self, project: str, secret: str, version: str) -> bool:
        """Return whether there is a version of a secret; "latest" is any."""
        with self._lock:
            found = self._secrets.get((project, secret))
        count = len(found.versions) if found else 0
        return 0 < (count if version == "latest" else int(version) if version.isdecimal() else 0) <= count

    def clear(self) -> None:
        """Forget all secrets."""
        with self._lock:
            self._secrets.clear()

    def _create(self, call: RestCall) -> Reply:
        project, name, fields = call.names["project"], call.query.get("secretId", ""), call.fields()
        if not _NAME.fullmatch(name):
            raise RestError(
                400, f"The provided Secret ID [{name}] does not match the expected format [[a-zA-Z_0-9]+]"
            )
        if "replication" not in fields:
            raise RestError(400, "Field [Secret.replication] is required.")
        with self._lock:
            if (project, name) in self._secrets:
                raise RestError(409, f"Secret [projects/{project}/secrets/{name}] already exists.")
            made = Secret(project=project, name=name, created_at=self._clock(), fields=fields)
            self._secrets[project, name] = made
        return json_reply(_resource(made))

    def _list(self, call: RestCall) -> Reply:
        with self._lock:
            found = [secret for secret in self._secrets.values() if secret.project == call.names["project"]]
        return json_reply(_page(call, "secrets", [_resource(secret) for secret in found]))

    def _get(self, call: RestCall) -> Reply:
        return json_reply(_resource(self._find(call)))

    def _add_version(self, call: RestCall) -> Reply:
        secret, payload = self._find(call), call.fields().get("payload") or {}
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
        with self._lock:
            secret.versions.append((data, self._clock()))
            return json_reply(_version(secret, len(secret.versions)))

    def _list_versions(self, call: RestCall) -> Reply:
        secret = self._find(call)
        numbers = range(len(secret.versions), 0, -1)
        return json_reply(_page(call, "versions", [_version(secret, number) for number in numbers]))

    def _access(self, call: RestCall) -> Reply:
        secret, asked = self._find(call), call.names["version"]
        number = len(secret.versions) if asked == "latest" else int(asked) if asked.isdecimal() else 0
        if not 0 < number <= len(secret.versions):
            raise RestError(404, f"Secret Version [{secret.path}/versions/{asked}] not found.")
        data, _ = secret.versions[number - 1]
        payload = {"data": base64.b64encode(data).decode(), "dataCrc32c": str(_crc32c(data))}
        return json_reply({"name": f"{secret.path}/versions/{number}", "payload": payload})

    def _find(self, call: RestCall) -> Secret:
        project, name = call.names["project"], call.names["secret"]
        with self._lock:
            if (found := self._secrets.get((project, name))) is None:
                raise RestError(404, f"Secret [projects/{project}/secrets/{name}] not found or has no versions.")
            return found


def routes(backend: Backend, secrets: SecretManager) -> list[web.RouteDef]:
    """Return the routes of Secret Manager."""
    service = Service(backend, WORDING, secrets.routes(), is_slow=False)
    return [web.route("*", "/v1/projects/{project}/secrets{tail:.*}", service.serve)]


def _route(verb: str, path: str, method: Method, work: Callable[[RestCall], Reply]) -> Route:
    return Route(verb=verb, pattern=re.compile(path), method=method, work=work)


def _resource(secret: Secret) -> dict[str, Any]:
    return {**secret.fields, "name": secret.path, "createTime": timestamp(secret.created_at)}


def _version(secret: Secret, number: int) -> dict[str, Any]:
    _, created_at = secret.versions[number - 1]
    name = f"{secret.path}/versions/{number}"
    return {"name": name, "createTime": timestamp(created_at), "state": "ENABLED"}


def _page(call: RestCall, key: str, items: list[dict[str, Any]]) -> dict[str, Any]:
    start, size = call.number("pageToken", 0), call.number("pageSize", 0) or 25_000
    end = start + size
    told = {"nextPageToken": str(end)} if end < len(items) else {}
    return {key: items[start:end], "totalSize": len(items), **told}


def _crc32c(data: bytes) -> int:
    import google_crc32c

    return int(google_crc32c.value(data))
