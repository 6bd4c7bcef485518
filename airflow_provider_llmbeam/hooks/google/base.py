"""Base classes of the hooks for Google Cloud."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
from airflow.sdk import Connection

from airflow_provider_llmbeam.exceptions import AccessDeniedError, JobSpecError
from airflow_provider_llmbeam.hooks.google.errors import (
    CloudRequest,
    is_transient,
    translate_errors,
    usable_connection,
)
from airflow_provider_llmbeam.transport.redirects import direct

if TYPE_CHECKING:
    from google.api_core.retry import Retry

#: Timeout of one request, and of all its retries, in seconds.
REQUEST_SECONDS = 30.0
RETRY_SECONDS = 60.0


class GoogleHook(GoogleBaseHook):
    """Credentials and project of a connection.

    If the connection `google_cloud_default` does not exist, the credentials are those of the machine.

    Args:
        project: Project that is billed; by default that of the connection or the credentials.
        gcp_conn_id: Airflow connection of type `google_cloud_platform`.
        impersonation_chain: Service account to impersonate, or a chain of them.

    Raises:
        AccessDeniedError: There is no connection of that name.
    """

    def __init__(
        self,
        project: str | None = None,
        gcp_conn_id: str = GoogleBaseHook.default_conn_name,
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain)
        self._project = project

    @classmethod
    def get_connection(cls, conn_id: str) -> Any:
        """Returns the connection; an empty one if the default connection does not exist."""
        try:
            return super().get_connection(conn_id)
        except AirflowNotFoundException as error:
            if conn_id == cls.default_conn_name:
                return Connection(conn_id=conn_id, conn_type=cls.conn_type)
            raise AccessDeniedError(
                f"`gcp_conn_id`: there is no connection {conn_id!r}. Add it under Admin, Connections, with the "
                "type Google Cloud."
            ) from error

    @property
    def project(self) -> str:
        """The project that is billed.

        Raises:
            CloudError: There are no credentials.
            JobSpecError: Neither the arguments nor the connection nor the credentials name a project.
        """
        if self._project is None:
            with usable_connection(self.gcp_conn_id):
                _, self._project = self.get_credentials_and_project_id()
        if not self._project:
            raise JobSpecError(
                f"No Google Cloud project is named (`project` of a runner or an endpoint), and neither connection "
                f"{self.gcp_conn_id!r} nor its credentials name one."
            )
        return self._project

    @property
    def account(self) -> str:
        """Email of the account of the credentials; "ACCOUNT" if they name none, as those of gcloud's login."""
        credentials = self.get_credentials()
        names = ("service_account_email", "account")
        return next(filter(None, (getattr(credentials, name, None) for name in names)), "ACCOUNT")

    @property
    def kms_key_name(self) -> str | None:
        """Key of Cloud KMS in the extra fields of the connection, which encrypts what this package makes."""
        with usable_connection(self.gcp_conn_id):
            return self._get_field("kms_key_name") or None


class RegionalHook(GoogleHook):
    """One service in one region, over HTTP.

    gRPC would need proxy settings of its own, and has threads that outlive a fork.

    Args:
        location: Region, e.g. `europe-west1`.
        project: Project that is billed; by default that of the connection or the credentials.
        gcp_conn_id: Airflow connection of type `google_cloud_platform`.
        impersonation_chain: Service account to impersonate, or a chain of them.

    Raises:
        AccessDeniedError: There is no connection of that name.
    """

    #: API of the service, and the role that allows its requests, for error messages.
    service: ClassVar[str]
    role: ClassVar[str]

    def __init__(
        self,
        location: str,
        project: str | None = None,
        gcp_conn_id: str = GoogleHook.default_conn_name,
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(project, gcp_conn_id, impersonation_chain)
        self.location = location
        self._clients: dict[type, Any] = {}

    @property
    def parent(self) -> str:
        """Resource name of the location, `projects/…/locations/…`."""
        return f"projects/{self.project}/locations/{self.location}"

    def _translate_errors(self, action: str, *, missing: str) -> AbstractContextManager[None]:
        """Turns errors of one request into a `CloudError`, see `CloudRequest`."""
        return translate_errors(CloudRequest(action, self.project, self.service, self.role, missing))

    def _rest_client(self, kind: type, endpoint: str | None = None) -> Any:
        """Returns the client of a class, made once; `endpoint` is its host if that depends on the region."""
        if kind not in self._clients:
            with usable_connection(self.gcp_conn_id):
                credentials = self.get_credentials()
            options = self.get_client_options(endpoint) if endpoint else self.get_client_options()
            self._clients[kind] = direct(kind(credentials=credentials, transport="rest", client_options=options))
        return self._clients[kind]

    def _options(self) -> dict[str, Any]:
        """Returns the retry policy and the timeout of a request, as arguments of a client's method."""
        return {"retry": retry(), "timeout": REQUEST_SECONDS}


def retry(seconds: float | None = None) -> Retry:
    """Returns a policy that retries transient errors for `seconds`, by default `RETRY_SECONDS`."""
    from google.api_core.retry import Retry

    return Retry(predicate=is_transient, initial=1.0, maximum=10.0, timeout=seconds or RETRY_SECONDS)
