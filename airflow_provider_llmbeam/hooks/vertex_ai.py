"""Airflow hook of Vertex AI: endpoints, models and their long-running operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from airflow.providers.common.compat.sdk import mask_secret

from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudNotFoundError, JobSpecError
from airflow_provider_llmbeam.hooks.google.base import REQUEST_SECONDS, GoogleHook, RegionalHook, retry
from airflow_provider_llmbeam.hooks.google.errors import (
    CloudRequest,
    require_new,
    translate_errors,
    usable_connection,
)
from airflow_provider_llmbeam.transport.redirects import direct

#: Largest number of endpoints, and of models, that are listed in one location.
MAX_LISTED = 5_000
_PAGE_SIZE = 100


class VertexAIHook(RegionalHook):
    """Sends requests to Vertex AI in one project and region; each method is one API call.

    Every method raises a `CloudError` when the request is refused or not answered. Methods that start a
    long-running operation return its name and are never retried here: the operation may have started although
    its reply was lost.
    """

    service = "aiplatform.googleapis.com"
    role = "roles/aiplatform.user"

    def get_publisher_model(self, name: str) -> Any:
        """Returns a model of Model Garden, `publishers/…/models/…`."""
        with self._translate_errors(f"show model {name!r}", missing=f"model {name!r} in Model Garden"):
            return self._client("ModelGardenServiceClient").get_publisher_model(name=name, **self._options())

    def get_endpoint(self, endpoint_id: str) -> Any:
        """Returns an endpoint; `None` if there is none of that id."""
        name = f"{self.parent}/endpoints/{endpoint_id}"
        return self._get("EndpointServiceClient", "get_endpoint", name, name=name)

    def get_model(self, model_id: str) -> Any:
        """Returns a model; `None` if there is none of that id."""
        name = f"{self.parent}/models/{model_id}"
        return self._get("ModelServiceClient", "get_model", name, name=name)

    def get_registered_model(self, name: str) -> Any:
        """Returns a version of a model by its full name, `projects/…/models/…@3` or `…@alias`; `None` if none."""
        return self._get("ModelServiceClient", "get_model", name, name=name)

    def merge_version_aliases(self, name: str, aliases: Sequence[str]) -> Any:
        """Moves aliases to a version, given by its full name with the number; returns the version.

        An alias leaves the version that had it. Source: cloud.google.com/vertex-ai/docs/model-registry/model-alias
        """
        with self._translate_errors(
            f"move the aliases {', '.join(aliases)} to {name!r}", missing=f"model {name!r}"
        ):
            return self._client("ModelServiceClient").merge_version_aliases(
                name=name, version_aliases=list(aliases), **self._options()
            )

    def get_operation(self, name: str) -> Any:
        """Returns a long-running operation; `None` if there is none of that name."""
        return self._get("EndpointServiceClient", "get_operation", name, request={"name": name})

    def list_endpoints(self) -> list[Any]:
        """Lists the endpoints of the location."""
        with self._translate_errors(
            f"list the endpoints of {self.location!r}", missing=f"region {self.location!r}"
        ):
            found = self._client("EndpointServiceClient").list_endpoints(parent=self.parent, **self._options())
            return list(islice(found, MAX_LISTED))

    def list_models(self) -> list[Any]:
        """Lists the models of the location."""
        with self._translate_errors(f"list the models of {self.location!r}", missing=f"region {self.location!r}"):
            found = self._client("ModelServiceClient").list_models(parent=self.parent, **self._options())
            return list(islice(found, MAX_LISTED))

    def list_running_operations(self, parent: str) -> Iterator[Any]:
        """Yields the unfinished operations of a resource; none if the resource does not exist."""
        client, token, tokens = self._client("EndpointServiceClient"), "", set[str]()
        action = f"list the operations of {parent!r}"
        while True:
            request = {"name": parent, "page_size": _PAGE_SIZE, "page_token": token}
            try:
                with self._translate_errors(action, missing=f"{parent!r}"):
                    page = client.list_operations(request, **self._options())
            except CloudNotFoundError:
                return
            yield from (operation for operation in page.operations if not operation.done)
            if not (token := page.next_page_token):
                return
            require_new(token, tokens, action)

    def deploy_from_model_garden(self, fields: Mapping[str, Any]) -> str:
        """Starts the deployment of a model of Model Garden or of the Hugging Face hub.

        Args:
            fields: Fields of a `DeployRequest` other than `destination`.
        """
        model = fields.get("publisher_model_name") or fields.get("hugging_face_model_id")
        with self._translate_errors(f"deploy model {model!r}", missing=f"model {model!r}"):
            return self._start("ModelGardenServiceClient", "deploy", {**fields, "destination": self.parent})

    def create_endpoint(self, endpoint_id: str, endpoint: Mapping[str, Any]) -> str:
        """Starts the creation of an endpoint from the fields of an `Endpoint`."""
        fields = {"parent": self.parent, "endpoint": endpoint, "endpoint_id": endpoint_id}
        with self._translate_errors(f"create endpoint {endpoint_id!r}", missing=f"region {self.location!r}"):
            return self._start("EndpointServiceClient", "create_endpoint", fields)

    def upload_model(self, model_id: str, model: Mapping[str, Any]) -> str:
        """Starts the upload of a model from the fields of a `Model`."""
        fields = {"parent": self.parent, "model": model, "model_id": model_id}
        with self._translate_errors(f"upload model {model_id!r}", missing=f"region {self.location!r}"):
            return self._start("ModelServiceClient", "upload_model", fields)

    def deploy_model(
        self, endpoint_id: str, deployed_model: Mapping[str, Any], traffic_split: Mapping[str, int]
    ) -> str:
        """Starts the deployment of a model to an endpoint.

        Args:
            endpoint_id: Id of the endpoint.
            deployed_model: Fields of a `DeployedModel`.
            traffic_split: Percentage of the requests by id of the deployed model; `0` is this one.
        """
        name = f"{self.parent}/endpoints/{endpoint_id}"
        fields = {"endpoint": name, "deployed_model": deployed_model, "traffic_split": traffic_split}
        model = deployed_model.get("model")
        with self._translate_errors(f"deploy model {model!r} to {name!r}", missing=f"model {model!r}"):
            return self._start("EndpointServiceClient", "deploy_model", fields)

    def update_endpoint_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """Replaces the labels of an endpoint."""
        self._update_endpoint(f"label {name!r}", name, labels=labels)

    def update_traffic_split(self, name: str, percents: Mapping[str, int]) -> None:
        """Replaces the percentages of the requests that the deployed models of an endpoint answer, by their ids.

        Args:
            name: Resource name of the endpoint.
            percents: Percentages, which add up to 100; empty: the endpoint takes no requests.
        """
        self._update_endpoint(f"change the traffic split of {name!r}", name, traffic_split=percents)

    def _update_endpoint(self, action: str, name: str, **field: Mapping[str, Any]) -> None:
        from google.cloud.aiplatform_v1 import Endpoint
        from google.protobuf.field_mask_pb2 import FieldMask

        endpoint, mask = Endpoint(name=name, **field), FieldMask(paths=list(field))
        with self._translate_errors(action, missing=f"endpoint {name!r}"):
            self._client("EndpointServiceClient").update_endpoint(
                endpoint=endpoint, update_mask=mask, **self._options()
            )

    def update_model_labels(self, name: str, labels: Mapping[str, str]) -> None:
        """Replaces the labels of a model."""
        from google.cloud.aiplatform_v1 import Model
        from google.protobuf.field_mask_pb2 import FieldMask

        model, mask = Model(name=name, labels=dict(labels)), FieldMask(paths=["labels"])
        with self._translate_errors(f"label {name!r}", missing=f"model {name!r}"):
            self._client("ModelServiceClient").update_model(model=model, update_mask=mask, **self._options())

    def undeploy_model(self, endpoint: str, deployed_model_id: str) -> None:
        """Starts the removal of a deployed model from an endpoint."""
        with self._translate_errors(f"undeploy {endpoint!r}", missing=f"endpoint {endpoint!r}"):
            self._client("EndpointServiceClient").undeploy_model(
                endpoint=endpoint, deployed_model_id=deployed_model_id, **self._options()
            )

    def delete_endpoint(self, name: str) -> None:
        """Starts the deletion of an endpoint, which must have no deployed model."""
        with self._translate_errors(f"delete {name!r}", missing=f"endpoint {name!r}"):
            self._client("EndpointServiceClient").delete_endpoint(name=name, **self._options())

    def delete_model(self, name: str) -> None:
        """Starts the deletion of a model, which must not be deployed."""
        with self._translate_errors(f"delete {name!r}", missing=f"model {name!r}"):
            self._client("ModelServiceClient").delete_model(name=name, **self._options())

    def cancel_operation(self, name: str) -> None:
        """Requests the cancellation of an operation; some operations continue nevertheless."""
        with self._translate_errors(f"cancel {name!r}", missing=f"operation {name!r}"):
            self._client("EndpointServiceClient").cancel_operation({"name": name}, **self._options())

    def _get(self, client: str, method: str, name: str, /, **arguments: Any) -> Any:
        try:
            with self._translate_errors(f"show {name!r}", missing=f"{name!r}"):
                return getattr(self._client(client), method)(**arguments, **self._options())
        except CloudNotFoundError:
            return None

    def _start(self, client: str, method: str, fields: Mapping[str, Any]) -> str:
        started = getattr(self._client(client), method)(fields, retry=None, timeout=REQUEST_SECONDS)
        return str(started.operation.name)

    def _client(self, name: str) -> Any:
        from google.cloud import aiplatform_v1

        return self._rest_client(getattr(aiplatform_v1, name), f"{self.location}-aiplatform.googleapis.com")


def read_secret(hook: GoogleHook, version: str) -> str:
    """Reads a version of a secret, which Airflow masks in logs.

    Args:
        hook: Hook with the credentials.
        version: Resource name, `projects/…/secrets/…/versions/…`.

    Raises:
        JobSpecError: The secret does not exist, or the account may not read it; nothing is billed.
        CloudError: See `hooks.google.errors`.
    """
    from google.cloud.secretmanager_v1 import SecretManagerServiceClient

    request = CloudRequest(
        action=f"show secret {version!r}",
        project=version.split("/")[1],
        service="secretmanager.googleapis.com",
        role="roles/secretmanager.secretAccessor",
        missing=f"secret {version!r}",
    )
    with usable_connection(hook.gcp_conn_id):
        credentials = hook.get_credentials()
    try:
        with translate_errors(request):
            client = direct(
                SecretManagerServiceClient(
                    credentials=credentials, transport="rest", client_options=hook.get_client_options()
                )
            )
            reply = client.access_secret_version(name=version, retry=retry(), timeout=REQUEST_SECONDS)
            secret = str(reply.payload.data.decode()).strip()
            mask_secret(secret)
            return secret
    except (AccessDeniedError, CloudNotFoundError) as error:
        raise JobSpecError(f"`hf_token_secret`: {error}") from error
