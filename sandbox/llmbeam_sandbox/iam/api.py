"""`testIamPermissions` of several APIs, Service Usage, projects, accounts, subnetworks and keys, over REST."""

from __future__ import annotations

import re
from collections.abc import Callable

from aiohttp import web

from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.checks import project_number
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import STATUSES, RestCall, RestError, Route, Service, StatusWording
from llmbeam_sandbox.iam.state import IamState

METHODS = Methods(
    names=(
        "bigquery.tables.testIamPermissions",
        "cloudkms.cryptoKeys.get",
        "cloudresourcemanager.projects.get",
        "cloudresourcemanager.projects.testIamPermissions",
        "compute.subnetworks.get",
        "iam.serviceAccounts.get",
        "iam.serviceAccounts.testIamPermissions",
        "pubsub.testIamPermissions",
        "secretmanager.secrets.testIamPermissions",
        "serviceusage.services.batchGet",
        "storage.buckets.testIamPermissions",
    )
)
_WORDING = StatusWording(
    reasons=STATUSES,
    messages={403: "The caller does not have permission", 500: "Internal error encountered."},
    rate_limit=RestError(429, "Quota exceeded."),
)
_PROJECT = r"/v3/projects/(?P<project>[^/:]+)"
_ACCOUNT = r"/v1/projects/-/serviceAccounts/(?P<account>[^/:]+)"
_TESTED = (
    ("cloudresourcemanager.projects.testIamPermissions", _PROJECT),
    ("iam.serviceAccounts.testIamPermissions", _ACCOUNT),
    (
        "bigquery.tables.testIamPermissions",
        r"/bigquery/v2/projects/(?P<project>[^/]+)/datasets/(?P<dataset>[^/]+)/tables/(?P<table>[^/:]+)",
    ),
    ("secretmanager.secrets.testIamPermissions", r"/v1/projects/(?P<project>[^/]+)/secrets/(?P<secret>[^/:]+)"),
    (
        "pubsub.testIamPermissions",
        r"/v1/projects/(?P<project>[^/]+)/(?P<kind>topics|subscriptions)/(?P<name>[^/:]+)",
    ),
)
_MAX_SERVICES = 30


class Iam:
    """The methods.

    Args:
        state: What is denied, disabled and missing.
        has_secret: Returns whether a project has a secret: permissions on a missing one are an empty list.
    """

    def __init__(self, state: IamState, has_secret: Callable[[str, str], bool]) -> None:
        self._state = state
        self._has_secret = has_secret

    def routes(self) -> list[Route]:
        """Returns the methods and their paths."""
        bucket = r"/storage/v1/b/(?P<bucket>[^/]+)/iam/testPermissions"
        subnetwork = (
            r"/compute/v1/projects/(?P<project>[^/]+)/regions/(?P<region>[^/]+)/subnetworks/(?P<subnetwork>[^/]+)"
        )
        key = r"/v1/(?P<key>projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/:]+)"
        services = r"/v1/projects/(?P<project>[^/]+)/services:batchGet"
        return [
            *(_route("POST", f"{path}:testIamPermissions", name, self._test) for name, path in _TESTED),
            _route("GET", bucket, "storage.buckets.testIamPermissions", self._test_bucket),
            _route("GET", _PROJECT, "cloudresourcemanager.projects.get", self._get_project),
            _route("GET", _ACCOUNT, "iam.serviceAccounts.get", self._get_account),
            _route("GET", services, "serviceusage.services.batchGet", self._batch_get),
            _route("GET", subnetwork, "compute.subnetworks.get", self._get_subnetwork),
            _route("GET", key, "cloudkms.cryptoKeys.get", self._get_key),
        ]

    def _test(self, call: RestCall) -> Reply:
        names = call.names
        self._find_account(names.get("account", ""))
        if "secret" in names and not self._has_secret(names["project"], names["secret"]):
            return json_reply({})
        return self._held(call.fields().get("permissions") or (), "/".join(names.values()))

    def _test_bucket(self, call: RestCall) -> Reply:
        return self._held(
            call.repeated.get("permissions", ()), call.names["bucket"], kind="storage#testIamPermissionsResponse"
        )

    def _held(self, permissions: object, resource: str, **others: str) -> Reply:
        asked = [str(each) for each in permissions] if isinstance(permissions, list | tuple) else []
        held = self._state.held(asked, resource)
        return json_reply({**others, **({"permissions": held} if held else {})})

    def _get_project(self, call: RestCall) -> Reply:
        project = call.names["project"]
        return json_reply({"name": f"projects/{project_number(project)}", "projectId": project, "state": "ACTIVE"})

    def _get_account(self, call: RestCall) -> Reply:
        email = call.names["account"]
        self._find_account(email)
        project = email.partition("@")[2].partition(".")[0]
        return json_reply({"name": f"projects/{project}/serviceAccounts/{email}", "email": email})

    def _find_account(self, email: str) -> None:
        if email and self._state.accounts is not None and email not in self._state.accounts:
            raise RestError(404, f"Unknown service account: {email}")

    def _batch_get(self, call: RestCall) -> Reply:
        project, names = call.names["project"], call.repeated.get("names", ())
        if len(names) > _MAX_SERVICES:
            raise RestError(400, f"At most {_MAX_SERVICES} services can be requested at once.")
        parent = f"projects/{project_number(project)}"
        services = [name.rpartition("/")[2] for name in names]
        return json_reply(
            {
                "services": [
                    {
                        "name": f"{parent}/services/{service}",
                        "parent": parent,
                        "config": {"name": service},
                        "state": "DISABLED" if service in self._state.disabled else "ENABLED",
                    }
                    for service in services
                ]
            }
        )

    def _get_subnetwork(self, call: RestCall) -> Reply:
        name, project, region = (call.names[each] for each in ("subnetwork", "project", "region"))
        path = f"projects/{project}/regions/{region}"
        if name not in self._state.subnetworks:
            raise RestError(404, f"The resource '{path}/subnetworks/{name}' was not found")
        return json_reply(
            {
                "kind": "compute#subnetwork",
                "name": name,
                "region": f"https://www.googleapis.com/compute/v1/{path}",
                "privateIpGoogleAccess": self._state.subnetworks[name],
            }
        )

    def _get_key(self, call: RestCall) -> Reply:
        name = call.names["key"]
        if name not in self._state.keys:
            raise RestError(404, f"CryptoKey {name} not found.")
        primary = {"name": f"{name}/cryptoKeyVersions/1", "state": self._state.keys[name]}
        return json_reply({"name": name, "purpose": "ENCRYPT_DECRYPT", "primary": primary})


def routes(backend: Backend, iam: Iam) -> list[web.RouteDef]:
    """Returns the routes, which precede those of the services that have the resources."""
    service = Service(backend, _WORDING, iam.routes(), is_slow=False)
    tested = "{name:[^/:]+}:testIamPermissions"
    paths = (
        ("POST", f"/v3/projects/{tested}"),
        ("POST", f"/v1/projects/-/serviceAccounts/{tested}"),
        ("POST", f"/bigquery/v2/projects/{{project}}/datasets/{{dataset}}/tables/{tested}"),
        *(
            ("POST", f"/v1/projects/{{project}}/{kind}/{tested}")
            for kind in ("secrets", "topics", "subscriptions")
        ),
        ("GET", "/storage/v1/b/{bucket}/iam/testPermissions"),
        ("GET", "/v3/projects/{project:[^/:]+}"),
        ("GET", "/v1/projects/-/serviceAccounts/{account:[^/:]+}"),
        ("GET", "/v1/projects/{project}/services:batchGet"),
        ("GET", "/compute/v1/projects/{project}/regions/{region}/subnetworks/{subnetwork}"),
        ("GET", "/v1/projects/{project}/locations/{location}/keyRings/{ring}/cryptoKeys/{key:[^/:]+}"),
    )
    return [web.route(verb, path, service.serve) for verb, path in paths]


def _route(verb: str, path: str, method: str, work: Callable[[RestCall], Reply]) -> Route:
    return Route(verb=verb, pattern=re.compile(path), method=method, work=work)
