"""Airflow hook of Cloud Run: services and their long-running operations."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from airflow_provider_llmbeam.exceptions import CloudNotFoundError
from airflow_provider_llmbeam.hooks.google.authentication import token_credentials, token_request
from airflow_provider_llmbeam.hooks.google.base import REQUEST_SECONDS, RegionalHook
from airflow_provider_llmbeam.hooks.google.errors import usable_connection
from airflow_provider_llmbeam.transport.google_auth import GoogleToken

#: Largest number of services that are listed in one location.
MAX_LISTED = 5_000


class CloudRunHook(RegionalHook):
    """Sends requests to Cloud Run in one project and region; each method is one API call.

    Every method raises a `CloudError` when the request is refused or not answered.
    """

    service = "run.googleapis.com"
    role = "roles/run.admin"

    def get_id_token(self, audience: str) -> str:
        """Returns an ID token for requests to a service.

        Args:
            audience: URL of the service.
        """
        with usable_connection(self.gcp_conn_id):
            headers = GoogleToken(token_credentials(self, audience), token_request()).headers()
            return headers["authorization"].removeprefix("Bearer ")

    def get_service(self, service_id: str) -> Any:
        """Returns a service; `None` if there is none of that id."""
        name = f"{self.parent}/services/{service_id}"
        try:
            with self._translate_errors(f"show {name!r}", missing=f"service {name!r}"):
                return self._client().get_service(name=name, **self._options())
        except CloudNotFoundError:
            return None

    def get_operation(self, name: str) -> Any:
        """Returns a long-running operation; `None` if there is none of that name."""
        try:
            with self._translate_errors(f"show {name!r}", missing=f"operation {name!r}"):
                return self._client().get_operation({"name": name}, **self._options())
        except CloudNotFoundError:
            return None

    def list_services(self) -> list[Any]:
        """Lists the services of the location."""
        with self._translate_errors(
            f"list the services of {self.location!r}", missing=f"region {self.location!r}"
        ):
            return list(islice(self._client().list_services(parent=self.parent, **self._options()), MAX_LISTED))

    def create_service(self, service_id: str, service: Mapping[str, Any]) -> str:
        """Starts the creation of a service and returns the name of the operation.

        It is never retried here: the operation may have started although its reply was lost.

        Args:
            service_id: Id of the service.
            service: Fields of a `Service`.
        """
        from google.cloud.run_v2 import CreateServiceRequest, Service

        request = CreateServiceRequest(parent=self.parent, service=Service(service), service_id=service_id)
        with self._translate_errors(f"create service {service_id!r}", missing=f"region {self.location!r}"):
            started = self._client().create_service(request, retry=None, timeout=REQUEST_SECONDS)
            return str(started.operation.name)

    def update_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """Replaces the labels of a service."""
        from google.cloud.run_v2 import Service, UpdateServiceRequest
        from google.protobuf.field_mask_pb2 import FieldMask

        service = Service(name=name, labels=dict(labels))
        request = UpdateServiceRequest(service=service, update_mask=FieldMask(paths=["labels"]))
        with self._translate_errors(f"label {name!r}", missing=f"service {name!r}"):
            self._client().update_service(request, **self._options())

    def delete_service(self, name: str) -> None:
        """Starts the deletion of a service."""
        with self._translate_errors(f"delete {name!r}", missing=f"service {name!r}"):
            self._client().delete_service(name=name, **self._options())

    def add_iam_member(self, name: str, role: str, member: str) -> None:
        """Grants a role on a service to a member, unless the member already has it.

        Args:
            name: Resource name of the service.
            role: Role, `roles/…`.
            member: Member of the IAM policy, e.g. `serviceAccount:…`.
        """
        with self._translate_errors(f"grant {role!r} on {name!r} to {member!r}", missing=f"service {name!r}"):
            policy = self._client().get_iam_policy({"resource": name}, **self._options())
            if any(binding.role == role and member in binding.members for binding in policy.bindings):
                return
            policy.bindings.add(role=role, members=[member])
            self._client().set_iam_policy({"resource": name, "policy": policy}, **self._options())

    def _client(self) -> Any:
        from google.cloud.run_v2 import ServicesClient

        return self._rest_client(ServicesClient)
