"""Endpoints of Vertex AI, with the models that are deployed to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

from airflow_provider_llmbeam.endpoints import vertex_ai_requests as requests_of
from airflow_provider_llmbeam.endpoints.fault import Fault, fault_of
from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.endpoints.price import vertex_usd_per_hour
from airflow_provider_llmbeam.endpoints.refusal import refused
from airflow_provider_llmbeam.endpoints.resource import EndpointSnapshot, Resource, RunningOperation
from airflow_provider_llmbeam.exceptions import CloudNotFoundError, JobSpecError
from airflow_provider_llmbeam.google_cloud.base import REQUEST_SECONDS, RegionalHook
from airflow_provider_llmbeam.google_cloud.errors import CloudRequest, translated
from airflow_provider_llmbeam.google_cloud.secret_manager import read_secret
from airflow_provider_llmbeam.probe.answer import Answer, ask
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_id, known_labels
from airflow_provider_llmbeam.spec.endpoint.vertex_ai import VertexEndpoint
from airflow_provider_llmbeam.spec.model import parse_model

#: Endpoints, models or operations of a location that are searched.
MAX_LISTED = 5_000


class VertexAIHook(RegionalHook):
    """Makes, finds and removes the endpoints of one project and region; see `endpoint_site.EndpointPlatform`."""

    def check(self, plan: EndpointPlan) -> None:
        """Sees whether there is such a model and such a token.

        Raises:
            JobSpecError: There is not; nothing is billed.
            CloudError: See `google_errors`.
        """
        spec = cast(VertexEndpoint, plan.spec)
        if spec.hf_token_secret is not None:
            self._token(spec)
        garden = requests_of.garden_name(spec.model)
        if garden is None or spec.container_image is not None:
            return
        try:
            with translated(self._request(f"show model {garden!r}", missing=f"model {garden!r} in Model Garden")):
                self._client("ModelGardenServiceClient").get_publisher_model(name=garden, **self._patience())
        except CloudNotFoundError as error:
            raise JobSpecError(f"`model`: {error} Nothing was started or billed.") from error

    def look(self, plan: EndpointPlan, operation: str | None) -> EndpointSnapshot:
        """Looks at one endpoint, and at the operation that was started last.

        Raises:
            CloudError: See `google_errors`.
        """
        spec = cast(VertexEndpoint, plan.spec)
        # First what is being done, then what there is: an operation that ends in between is seen by what it made,
        # and the other way round it would be taken for none, and asked for once more.
        last = self._operation(operation) if operation else None
        running = self.running(plan.key)
        endpoint, model = self._endpoint(plan.key), self._model(plan.key)
        fault = None
        if last is not None and last.done and last.error.code:
            fault = fault_of(last.error.code, last.error.message)
        elif last is not None and not last.done and operation not in {one.name for one in running}:
            running.append(requests_of.running_operation(last.name, last.metadata.TypeName()))
        parts = tuple(part for part in (self._part_of(endpoint), self._part_of_model(model)) if part)
        deployed = endpoint is not None and bool(endpoint.deployed_models)
        return EndpointSnapshot(
            parts=parts,
            running=tuple(running),
            missing=requests_of.missing(
                spec,
                endpoint=endpoint is not None,
                model=model is not None,
                deployed=deployed,
                running=bool(running),
            ),
            is_up=deployed and not running,
            fault=fault,
            base_url=self._base_url(endpoint) if endpoint is not None else None,
        )

    def make(self, step: str, plan: EndpointPlan) -> str | Fault | None:
        """Asks for an endpoint, a model, replicas of it, or with Model Garden for all at once."""
        spec = cast(VertexEndpoint, plan.spec)
        return refused(
            self._request(f"make the {step} of {plan.key!r}", missing=f"model {spec.model!r}"),
            lambda: str(self._made(step, plan, spec).operation.name),
        )

    def adopt(self, plan: EndpointPlan, seen: EndpointSnapshot) -> bool:
        """Labels endpoint and model; what Model Garden made has no labels yet.

        Raises:
            CloudError: See `google_errors`.
        """
        from google.cloud.aiplatform_v1 import Endpoint, Model
        from google.protobuf.field_mask_pb2 import FieldMask

        labels, mask = dict(plan.labels), FieldMask(paths=["labels"])
        for part in seen.parts:
            with translated(self._request(f"label {part.name!r}", missing=f"{part.kind} {part.name!r}")):
                if part.kind == "model":
                    self._client("ModelServiceClient").update_model(
                        model=Model(name=part.name, labels=labels), update_mask=mask, **self._patience()
                    )
                else:
                    self._client("EndpointServiceClient").update_endpoint(
                        endpoint=Endpoint(name=part.name, labels=labels), update_mask=mask, **self._patience()
                    )
        return True

    def ask(self, plan: EndpointPlan, seen: EndpointSnapshot) -> Answer:
        """Asks the model for a few words.

        Raises:
            CloudError: There are no credentials.
        """
        return ask(parse_model(self.model_spec(plan, seen)), self)

    def model_spec(self, plan: EndpointPlan, seen: EndpointSnapshot) -> dict[str, Any]:
        """A model spec for a job that asks this endpoint, see `spec.VertexEndpointModel`."""
        (endpoint,) = (part for part in seen.parts if part.kind == "endpoint")
        return {
            "type": "vertex_endpoint",
            "name": requests_of.served_name(plan.spec.model),
            "endpoint": endpoint.name,
            "base_url": seen.base_url,
        }

    def find(self, key: str | None) -> list[Resource]:
        """Finds everything of an endpoint, or of all of ours.

        Raises:
            CloudError: See `google_errors`.
        """
        request = self._request(f"list the endpoints of {self.location!r}", missing=f"region {self.location!r}")
        with translated(request):
            endpoints = self._client("EndpointServiceClient").list_endpoints(
                parent=self._parent, **self._patience()
            )
            models = self._client("ModelServiceClient").list_models(parent=self._parent, **self._patience())
            found = [
                *map(self._part_of, islice(endpoints, MAX_LISTED)),
                *map(self._part_of_model, islice(models, MAX_LISTED)),
            ]
        ours = [part for part in found if part is not None and part.key is not None]
        if key is None:
            return ours
        # By its name, too: of what Model Garden made a list shows no label before it is adopted.
        named = (self._part_of(self._endpoint(key)), self._part_of_model(self._model(key)))
        parts = {part.name: part for part in (*named, *ours) if part is not None}
        return [part for part in parts.values() if part.key == key or part.id == endpoint_id(key)]

    def running(self, key: str) -> list[RunningOperation]:
        """Finds what is being done to an endpoint.

        Raises:
            CloudError: See `google_errors`.
        """
        own = endpoint_id(key)
        found = [
            requests_of.running_operation(one.name, one.metadata.TypeName())
            for kind in ("endpoints", "models")
            for one in self._operations(f"{self._parent}/{kind}/{own}")
        ]
        return found + [
            RunningOperation(one.name) for one in self._operations(self._parent) if _is_of_garden(one, own)
        ]

    def remove(self, part: Resource) -> None:
        """Undeploys what an endpoint has, or deletes what is empty.

        Raises:
            CloudError: See `google_errors`.
        """
        verb = "undeploy" if part.deployed else "delete"
        with translated(self._request(f"{verb} {part.name!r}", missing=f"{part.kind} {part.name!r}")):
            if part.kind == "model":
                self._client("ModelServiceClient").delete_model(name=part.name, **self._patience())
            elif not part.deployed:
                self._client("EndpointServiceClient").delete_endpoint(name=part.name, **self._patience())
            for deployed in part.deployed:
                self._client("EndpointServiceClient").undeploy_model(
                    endpoint=part.name, deployed_model_id=deployed, **self._patience()
                )

    def cancel(self, operation: str) -> None:
        """Asks for the end of an operation; some go on all the same.

        Raises:
            CloudError: See `google_errors`.
        """
        request = self._request(f"cancel {operation!r}", missing=f"operation {operation!r}")
        with translated(request):
            self._client("EndpointServiceClient").cancel_operation({"name": operation}, **self._patience())

    def _made(self, step: str, plan: EndpointPlan, spec: VertexEndpoint) -> Any:
        own = endpoint_id(plan.key)
        # Not tried again here: a reply that got lost may have been that of an operation.
        once = {"retry": None, "timeout": REQUEST_SECONDS}
        if step == "deployment":
            fields = requests_of.deploy_request(plan, spec, self._parent, self._token(spec))
            return self._client("ModelGardenServiceClient").deploy(fields, **once)
        if step == "endpoint":
            endpoint = requests_of.endpoint_resource(plan, spec)
            fields = {"parent": self._parent, "endpoint": endpoint, "endpoint_id": own}
            return self._client("EndpointServiceClient").create_endpoint(fields, **once)
        if step == "model":
            model = requests_of.model_resource(plan, spec, self._token(spec))
            fields = {"parent": self._parent, "model": model, "model_id": own}
            return self._client("ModelServiceClient").upload_model(fields, **once)
        deployed = requests_of.deployed_model(plan, spec, f"{self._parent}/models/{own}")
        fields = {
            "endpoint": f"{self._parent}/endpoints/{own}",
            "deployed_model": deployed,
            "traffic_split": {"0": 100},
        }
        return self._client("EndpointServiceClient").deploy_model(fields, **once)

    def _token(self, spec: VertexEndpoint) -> str | None:
        return None if spec.hf_token_secret is None else read_secret(self, spec.hf_token_secret)

    def _endpoint(self, key: str) -> Any:
        name = f"{self._parent}/endpoints/{endpoint_id(key)}"
        return self._found("EndpointServiceClient", "get_endpoint", name)

    def _model(self, key: str) -> Any:
        return self._found("ModelServiceClient", "get_model", f"{self._parent}/models/{endpoint_id(key)}")

    def _operation(self, name: str) -> Any:
        return self._found("EndpointServiceClient", "get_operation", {"name": name})

    def _found(self, client: str, method: str, name: Any) -> Any:
        """What the service shows, or `None` where it has none."""
        try:
            with translated(self._request(f"show {name!r}", missing=f"{name!r}")):
                if isinstance(name, dict):
                    return getattr(self._client(client), method)(name, **self._patience())
                return getattr(self._client(client), method)(name=name, **self._patience())
        except CloudNotFoundError:
            return None

    def _operations(self, parent: str) -> Iterator[Any]:
        """The operations of a resource that are not over."""
        client, token = self._client("EndpointServiceClient"), ""
        while True:
            try:
                with translated(self._request(f"list the operations of {parent!r}", missing=f"{parent!r}")):
                    asked = {"name": parent, "page_size": 100, "page_token": token}
                    page = client.list_operations(asked, **self._patience())
            except CloudNotFoundError:
                return
            yield from (one for one in page.operations if not one.done)
            if not (token := page.next_page_token):
                return

    def _part_of(self, endpoint: Any) -> Resource | None:
        if endpoint is None:
            return None
        return Resource(
            kind="endpoint",
            name=endpoint.name,
            labels=known_labels(dict(endpoint.labels), endpoint.display_name),
            deployed={one.id: one.model for one in endpoint.deployed_models},
            usd_per_hour=_usd_per_hour(endpoint.deployed_models),
        )

    def _part_of_model(self, model: Any) -> Resource | None:
        if model is None:
            return None
        return Resource(
            "model", model.name.partition("@")[0], known_labels(dict(model.labels), model.display_name)
        )

    def _base_url(self, endpoint: Any) -> str:
        if endpoint.dedicated_endpoint_dns:
            return f"https://{endpoint.dedicated_endpoint_dns}"
        return f"https://{self.location}-aiplatform.googleapis.com"

    @property
    def _parent(self) -> str:
        return f"projects/{self.project}/locations/{self.location}"

    def _client(self, name: str) -> Any:
        from google.cloud import aiplatform_v1

        return self._rest_client(getattr(aiplatform_v1, name), f"{self.location}-aiplatform.googleapis.com")

    def _request(self, action: str, *, missing: str) -> CloudRequest:
        return CloudRequest(
            action=action,
            project=self.project,
            service="aiplatform.googleapis.com",
            role="roles/aiplatform.user",
            missing=missing,
        )


def _is_of_garden(operation: Any, model_id: str) -> bool:
    """Whether an operation brings up our model from Model Garden: it is under no endpoint."""
    from google.cloud.aiplatform_v1 import DeployOperationMetadata

    if operation.metadata.TypeName().rpartition(".")[2] != requests_of.GARDEN_METADATA:
        return False
    metadata = DeployOperationMetadata.pb(DeployOperationMetadata())
    operation.metadata.Unpack(metadata)
    return bool(metadata.model_id == model_id)


def _usd_per_hour(deployed_models: Sequence[Any]) -> float | None:
    prices = [
        vertex_usd_per_hour(
            one.dedicated_resources.machine_spec.machine_type, one.dedicated_resources.min_replica_count
        )
        for one in deployed_models
    ]
    known = [price for price in prices if price is not None]
    return sum(known) if known and len(known) == len(prices) else None
