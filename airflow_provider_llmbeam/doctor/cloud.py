"""Reads the facts of the checks from Google Cloud, with the account of a connection; changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_provider_llmbeam.doctor.checks import Resource
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudNotFoundError
from airflow_provider_llmbeam.hooks.google.authentication import token_request
from airflow_provider_llmbeam.hooks.google.base import GoogleHook
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest, usable_connection
from airflow_provider_llmbeam.hooks.google.rest import GoogleRest

_PROJECTS = "https://cloudresourcemanager.googleapis.com/v3/projects"
_SERVICES = "https://serviceusage.googleapis.com/v1/projects"
_BUCKETS = "https://storage.googleapis.com/storage/v1/b"
_BIGQUERY = "https://bigquery.googleapis.com/bigquery/v2/projects"
_SECRETS = "https://secretmanager.googleapis.com/v1"
_ACCOUNTS = "https://iam.googleapis.com/v1/projects/-/serviceAccounts"
_PUBSUB = "https://pubsub.googleapis.com/v1"
_KEYS = "https://cloudkms.googleapis.com/v1"
_COMPUTE = "https://compute.googleapis.com/compute/v1/projects"
#: Roles of a dataset that may write its tables. Data Editor is shown as WRITER.
#: Source: docs.cloud.google.com/iam/docs/roles-permissions/bigquery (2026-11-29)
_WRITERS = frozenset(
    {"OWNER", "WRITER", *(f"roles/bigquery.{name}" for name in ("admin", "dataEditor", "dataOwner"))}
)


class Cloud:
    """The facts that one account sees.

    Every method raises a `CloudError`, see `hooks.google.errors`.

    Args:
        gcp_conn_id: Connection with the credentials.
        impersonation_chain: Service account to impersonate, or a chain of them.
    """

    def __init__(self, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None = None) -> None:
        self._hook = GoogleHook(gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain)
        self._rest = GoogleRest(self._hook)

    @property
    def project(self) -> str:
        """Project of the connection or of its credentials."""
        return self._hook.project

    def account(self) -> str:
        """Renews the token, and returns the email of the account."""
        with usable_connection(self._hook.gcp_conn_id):
            self._hook.get_credentials().refresh(token_request())  # type: ignore[no-untyped-call]
            return self._hook.account

    def workers_account(self, project: str) -> str:
        """Returns the account of workers for which none is named: the default one of Compute Engine."""
        url = f"{_PROJECTS}/{project}"
        found = self._rest.get(url, {}, self._request(url, f"show project {project!r}", "roles/browser"))
        return f"{found['name'].rpartition('/')[2]}-compute@developer.gserviceaccount.com"

    def services(self, project: str, names: Sequence[str]) -> Mapping[str, str]:
        """Returns the state of each API."""
        url = f"{_SERVICES}/{project}/services:batchGet"
        asked = {"names": [f"projects/{project}/services/{name}" for name in names]}
        request = self._request(url, "show which APIs are enabled", "roles/serviceusage.serviceUsageViewer")
        found = self._rest.get(url, asked, request)
        return {each["name"].rpartition("/")[2]: each.get("state", "") for each in found.get("services", ())}

    def held(self, resource: Resource, permissions: Sequence[str]) -> Collection[str]:
        """Returns those of the permissions that the account has on a resource."""
        asked, url = {"permissions": list(permissions)}, self._url(resource)
        request = self._request(url, f"test the permissions on {resource}", "roles/browser", str(resource))
        if resource.kind == "bucket":
            reply = self._rest.get(f"{url}/iam/testPermissions", asked, request)
        else:
            reply = self._rest.post(f"{url}:testIamPermissions", asked, request)
        held = set(reply.get("permissions", ()))
        if resource.kind == "dataset" and held != set(permissions) and self._is_writer(resource):
            return permissions
        return held

    def find(self, resource: Resource) -> dict[str, Any] | None:
        """Returns a resource; `None` if there is none, and `{}` if the account may not see it."""
        url = self._url(resource, itself=True)
        try:
            return self._rest.get(url, {}, self._request(url, f"show {resource}", "roles/viewer", str(resource)))
        except CloudNotFoundError:
            return None
        except AccessDeniedError:
            return {}

    def has_google_access(self, project: str, location: str, name: str) -> bool:
        """Returns whether machines of a subnetwork reach Google's APIs without public addresses."""
        url = f"{_COMPUTE}/{project}/regions/{location}/subnetworks/{name.rpartition('/')[2]}"
        what = f"subnetwork {name!r}"
        request = self._request(url, f"show {what}", "roles/compute.networkViewer", what)
        return bool(self._rest.get(url, {}, request).get("privateIpGoogleAccess"))

    def _is_writer(self, dataset: Resource) -> bool:
        """Returns whether a dataset names the account as one that may write."""
        account = self._hook.account
        members = (account, f"serviceAccount:{account}", f"user:{account}")
        return any(
            entry.get("role") in _WRITERS and {entry.get("userByEmail"), entry.get("iamMember")} & {*members}
            for entry in (self.find(dataset) or {}).get("access", ())
        )

    def _url(self, resource: Resource, *, itself: bool = False) -> str:
        """Returns the address of a resource; a dataset has no permissions to test but those of its project."""
        name = resource.name
        match resource.kind:
            case "bucket":
                return f"{_BUCKETS}/{name}"
            case "dataset" if not itself:
                return f"{_PROJECTS}/{name.rpartition('.')[0]}"
            case "dataset":
                project, _, dataset = name.rpartition(".")
                return f"{_BIGQUERY}/{project}/datasets/{dataset}"
            case "table":
                project, dataset, table = name.rsplit(".", 2)
                return f"{_BIGQUERY}/{project}/datasets/{dataset}/tables/{quote(table, safe='$')}"
            case "secret":
                return f"{_SECRETS}/{name}"
            case "service_account":
                return f"{_ACCOUNTS}/{name}"
            case "topic" | "subscription":
                return f"{_PUBSUB}/{name}"
            case "key":
                return f"{_KEYS}/{name}"
        return f"{_PROJECTS}/{name}"

    def _request(self, url: str, action: str, role: str, missing: str = "such project") -> CloudRequest:
        return CloudRequest(action, self.project, urlsplit(url).netloc, role, missing)
