"""Endpoints on Vertex AI, with the models that are deployed to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from airflow_provider_llmbeam.endpoints.fault import Fault, fault_of, operation_or_fault
from airflow_provider_llmbeam.endpoints.platform import Answer, EndpointPlan, SentRequests
from airflow_provider_llmbeam.endpoints.platforms import vertex_ai_requests as requests_of
from airflow_provider_llmbeam.endpoints.platforms.base import HookPlatform, ask, vertex_usd_per_hour
from airflow_provider_llmbeam.endpoints.resource import (
    OTHER_VERSION,
    EndpointSnapshot,
    LostReply,
    Resource,
    RunningOperation,
)
from airflow_provider_llmbeam.exceptions import CloudError, CloudNotFoundError, JobSpecError
from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook, read_secret
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_id, known_labels
from airflow_provider_llmbeam.spec.endpoint.vertex_ai import VertexEndpoint
from airflow_provider_llmbeam.spec.fields.names import ChatRoute
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel
from airflow_provider_llmbeam.spec.model import parse_model

#: `google.rpc.Code` of an operation that was cancelled, see `CancelOperation`.
_CANCELLED = 1


class VertexAIPlatform(HookPlatform[VertexAIHook]):
    """Provisions, finds and removes endpoints on Vertex AI; see `endpoints.platform.EndpointPlatform`.

    Args:
        hook: Hook of the location.
    """

    def __init__(self, hook: VertexAIHook) -> None:
        super().__init__(hook)
        #: Method that answered the request of `probe`.
        self._chat_route: ChatRoute | None = None

    def check(self, plan: EndpointPlan) -> None:
        """Checks that the model and the Hugging Face token exist.

        Raises:
            JobSpecError: One of them does not; nothing is billed.
            CloudError: A request failed.
        """
        spec = cast(VertexEndpoint, plan.spec)
        if RegisteredModel.read(spec.model) is not None:
            for model in spec.deployed_models.values():
                if self._hook.get_registered_model(model) is None:
                    raise JobSpecError(f"`model`: the Model Registry has no {model!r}.")
            return
        if spec.hf_token_secret is not None:
            self._hf_token(spec)
        garden = requests_of.garden_name(spec.model)
        if garden is None or spec.container_image is not None:
            return
        try:
            self._hook.get_publisher_model(garden)
        except CloudNotFoundError as error:
            raise JobSpecError(f"`model`: {error}") from error

    def poll(self, plan: EndpointPlan, operation: str | None, lost: LostReply | None = None) -> EndpointSnapshot:
        """Returns the present state of an endpoint; see `EndpointPlatform.poll`."""
        spec = cast(VertexEndpoint, plan.spec)
        # Operations before resources: an operation that finishes in between is then recognised by what it
        # created. In the other order neither would be found, and the resource would be requested twice.
        last = self._hook.get_operation(operation) if operation else None
        operations = self.running_operations(plan.key)
        fault = None
        if last is not None and last.done and last.error.code:
            fault = fault_of(last.error.code, last.error.message)
        elif last is not None and not last.done and operation not in {one.name for one in operations}:
            operations.append(requests_of.running_operation(last.name, last.metadata.TypeName()))
        unsure = [] if operations or lost is None else self._unsure_operations(spec, lost, operation)
        endpoint, model = self._endpoint(plan.key), self._model(plan.key)
        is_deployed = endpoint is not None and bool(endpoint.deployed_models)
        if not is_deployed:
            operations += unsure
        deployed = [(one.model, one.model_version_id) for one in endpoint.deployed_models] if endpoint else []
        missing = requests_of.missing(
            spec,
            endpoint=endpoint is not None,
            model=model is not None,
            deployed=[one.id for one in endpoint.deployed_models] if endpoint else [],
            running=bool(operations),
        )
        return EndpointSnapshot(
            resources=_resources(endpoint, model),
            operations=tuple(operations),
            missing=OTHER_VERSION if requests_of.serves_other_version(spec, deployed) else missing,
            is_up=is_deployed and missing is None and not operations,
            fault=fault,
            base_url=self._base_url(endpoint, spec) if endpoint is not None else None,
            predict_url=_predict_url(endpoint) if spec.is_peered else None,
        )

    def create(self, step: str, plan: EndpointPlan) -> str | Fault | None:
        """Requests an endpoint, a model or its replicas; Model Garden creates all of them with one request."""
        spec = cast(VertexEndpoint, plan.spec)
        return operation_or_fault(lambda: self._create(step, plan, spec))

    def adopt(self, plan: EndpointPlan, snapshot: EndpointSnapshot) -> bool:
        """Labels endpoint and model; those that Model Garden created have no labels before."""
        for resource in snapshot.resources:
            if resource.kind == "model":
                self._hook.update_model_labels(resource.name, plan.labels)
            else:
                self._hook.update_endpoint_labels(resource.name, plan.labels)
        return True

    def probe(self, plan: EndpointPlan, snapshot: EndpointSnapshot) -> Answer:
        """Sends a small request to the model, to each method that may take it until one does."""
        spec = cast(VertexEndpoint, plan.spec)
        if spec.network is not None and not spec.reachable:
            return Answer()  # only the machines in its network can ask it
        refusals, may_help_to_wait = [], False
        for route in spec.chat_routes:
            model = {**self.model_spec(plan, snapshot), "chat_route": route}
            answer = ask(parse_model(model), self._hook)
            if answer.refusal is None:
                self._chat_route = route
                return answer
            refusals.append(f"{parse_model(model).method_url()}: {answer.refusal}")  # type: ignore[union-attr]
            may_help_to_wait |= answer.may_help_to_wait
        if len(refusals) > 1:
            refusals.append("To ask only one of the two, name it in `chat_route`.")
        return Answer(" ".join(refusals), may_help_to_wait)

    def model_spec(self, plan: EndpointPlan, snapshot: EndpointSnapshot) -> dict[str, Any]:
        """Returns the model spec of a job that uses this endpoint, see `spec.VertexEndpointModel`."""
        (endpoint,) = (resource for resource in snapshot.resources if resource.kind == "endpoint")
        spec = cast(VertexEndpoint, plan.spec)
        fields = {
            "base_url": snapshot.base_url,
            "predict_url": snapshot.predict_url,
            "network": None if spec.reachable else spec.network,
            "deployed_models": spec.deployed_models if spec.canary is not None else None,
        }
        return {
            "type": "vertex_endpoint",
            "name": requests_of.served_name(spec.model),
            "endpoint": endpoint.name,
            "chat_route": self._chat_route or spec.chat_routes[0],
            **{name: value for name, value in fields.items() if value is not None},
        }

    def find(self, key: str | None) -> tuple[list[Resource], CloudError | None]:
        """Finds the resources of an endpoint; with `None` those of every endpoint of this package."""
        # Those of one endpoint by name: what Model Garden creates has no label until it is adopted.
        endpoints = self._hook.list_endpoints() if key is None else [self._endpoint(key)]
        models: list[Any] = []
        error: CloudError | None = None
        try:
            models = self._hook.list_models() if key is None else [self._model(key)]
        except CloudError as failure:  # must not keep what bills from being removed
            error = failure
        found = [
            *(_endpoint_resource(one) for one in endpoints if one is not None),
            *(_model_resource(one) for one in models if one is not None),
        ]
        return [resource for resource in found if key is not None or resource.key is not None], error

    def running_operations(self, key: str) -> list[RunningOperation]:
        """Finds the unfinished operations of an endpoint."""
        own, parent = endpoint_id(key), self._hook.parent
        return [
            requests_of.running_operation(one.name, one.metadata.TypeName())
            for kind in ("endpoints", "models")
            for one in self._hook.list_running_operations(f"{parent}/{kind}/{own}")
        ]

    def started_operations(self, sent: SentRequests) -> list[RunningOperation]:
        """Finds the last operation, and with a lost reply the deployments from Model Garden that may be ours."""
        name = sent.operation
        if name is not None and f"/locations/{self.location}/" in name:
            last = self._hook.get_operation(name)
            if last is not None and not last.done:
                return [requests_of.running_operation(name, last.metadata.TypeName())]
            if last is not None and last.error.code == _CANCELLED:
                return []  # the provision requests nothing after it
        if sent.lost is None:
            return []
        return self._unsure_operations(cast(VertexEndpoint, sent.spec), sent.lost, name)

    def remove(self, resource: Resource) -> None:
        """Undeploys the models of an endpoint, or deletes a resource without deployed models."""
        if resource.kind == "model":
            self._hook.delete_model(resource.name)
        elif not resource.deployed:
            self._hook.delete_endpoint(resource.name)
        if len(resource.deployed) > 1:
            # A model with traffic cannot be undeployed unless it is the last one, see `UndeployModelRequest`.
            self._hook.update_traffic_split(resource.name, {})
        for deployed_model_id in resource.deployed:
            self._hook.undeploy_model(resource.name, deployed_model_id)

    def cancel(self, operation: str) -> None:
        """Requests the cancellation of an operation; some operations continue nevertheless."""
        self._hook.cancel_operation(operation)

    def _create(self, step: str, plan: EndpointPlan, spec: VertexEndpoint) -> str:
        own = endpoint_id(plan.key)
        if step == "deployment":
            return self._hook.deploy_from_model_garden(
                requests_of.deploy_request(plan, spec, self._hf_token(spec))
            )
        if step == "endpoint":
            return self._hook.create_endpoint(own, requests_of.endpoint_resource(plan, spec))
        if step == "model":
            return self._hook.upload_model(own, requests_of.model_resource(plan, spec, self._hf_token(spec)))
        deployed_id = requests_of.DEPLOYING_STEPS[step]
        model = spec.deployed_models[deployed_id]
        is_registered = RegisteredModel.read(model) is not None
        model_name = model if is_registered else f"{self._hook.parent}/models/{own}"
        endpoint = self._endpoint(plan.key) if spec.canary is not None else None
        deployed = [one.id for one in endpoint.deployed_models] if endpoint is not None else []
        return self._hook.deploy_model(
            own,
            requests_of.deployed_model(plan, spec, deployed_id, model_name),
            requests_of.split_of_deployment(spec, deployed_id, deployed),
        )

    def _unsure_operations(
        self, spec: VertexEndpoint, lost: LostReply, known: str | None
    ) -> list[RunningOperation]:
        """Finds the unfinished deployments from Model Garden that may be ours.

        Such an operation belongs to the location, and documented are only its model and its time: it names our
        endpoint when it is done.
        """
        if not requests_of.is_from_garden(spec):
            return []
        return [
            RunningOperation(one.name, is_sure=False)
            for one in self._hook.list_running_operations(self._hook.parent)
            if one.name != known and _may_deploy(one, spec, lost)
        ]

    def _hf_token(self, spec: VertexEndpoint) -> str | None:
        return None if spec.hf_token_secret is None else read_secret(self._hook, spec.hf_token_secret)

    def _endpoint(self, key: str) -> Any:
        return self._hook.get_endpoint(endpoint_id(key))

    def _model(self, key: str) -> Any:
        return self._hook.get_model(endpoint_id(key))

    def _base_url(self, endpoint: Any, spec: VertexEndpoint) -> str:
        if spec.forwarding_address is not None:
            return f"https://{spec.forwarding_address}"
        if endpoint.dedicated_endpoint_dns:
            # The format that its documentation shows begins with the scheme, examples do not.
            return f"https://{endpoint.dedicated_endpoint_dns.removeprefix('https://')}"
        return f"https://{self.location}-aiplatform.googleapis.com"


def _predict_url(endpoint: Any) -> str | None:
    """Returns the private address of the deployed model; it has one once it is deployed."""
    deployed = () if endpoint is None else endpoint.deployed_models
    return next((one.private_endpoints.predict_http_uri for one in deployed), "") or None


def _resources(endpoint: Any, model: Any) -> tuple[Resource, ...]:
    found = () if endpoint is None else (_endpoint_resource(endpoint),)
    return found if model is None else (*found, _model_resource(model))


def _endpoint_resource(endpoint: Any) -> Resource:
    return Resource(
        kind="endpoint",
        name=endpoint.name,
        labels=known_labels(dict(endpoint.labels), endpoint.display_name),
        deployed={one.id: one.model for one in endpoint.deployed_models},
        usd_per_hour=_usd_per_hour(endpoint.deployed_models),
    )


def _model_resource(model: Any) -> Resource:
    return Resource("model", model.name.partition("@")[0], known_labels(dict(model.labels), model.display_name))


def _may_deploy(operation: Any, spec: VertexEndpoint, lost: LostReply) -> bool:
    """Whether an operation deploys the model of `spec` from Model Garden, and may be that of a lost reply."""
    from google.cloud.aiplatform_v1 import DeployOperationMetadata

    if operation.metadata.TypeName().rpartition(".")[2] != requests_of.GARDEN_METADATA:
        return False
    metadata = DeployOperationMetadata.pb(DeployOperationMetadata())
    metadata.ParseFromString(operation.metadata.value)  # also of v1beta1, with the same fields
    created_at = metadata.generic_metadata.create_time
    seconds = created_at.ToNanoseconds() / 1e9 if created_at.seconds else None
    return requests_of.may_be_model(metadata.publisher_model, spec) and lost.may_have_started(seconds)


def _usd_per_hour(deployed_models: Sequence[Any]) -> float | None:
    prices = [
        vertex_usd_per_hour(
            one.dedicated_resources.machine_spec.machine_type, one.dedicated_resources.min_replica_count
        )
        for one in deployed_models
    ]
    known = [price for price in prices if price is not None]
    return sum(known) if known and len(known) == len(prices) else None
