"""Services on Cloud Run with a GPU."""

from __future__ import annotations

from itertools import islice
from typing import Any, cast

from airflow_provider_llmbeam.endpoints.cloud_run_requests import memory_gib, served_name, service
from airflow_provider_llmbeam.endpoints.fault import Fault, fault_of
from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.endpoints.price import cloud_run_usd_per_hour
from airflow_provider_llmbeam.endpoints.refusal import refused
from airflow_provider_llmbeam.endpoints.resource import EndpointSnapshot, Resource, RunningOperation
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudNotFoundError, JobSpecError
from airflow_provider_llmbeam.google_cloud.base import REQUEST_SECONDS, RegionalHook
from airflow_provider_llmbeam.google_cloud.errors import CloudRequest, translated, usable_connection
from airflow_provider_llmbeam.google_cloud.tokens import id_token
from airflow_provider_llmbeam.probe.answer import Answer, ask
from airflow_provider_llmbeam.spec.endpoint.cloud_run import CloudRunEndpoint
from airflow_provider_llmbeam.spec.endpoint.identity import service_id
from airflow_provider_llmbeam.spec.model import parse_model

#: Services of a location that are searched.
MAX_LISTED = 5_000
_INVOKER = "roles/run.invoker"


class CloudRunHook(RegionalHook):
    """Makes, finds and removes the services of one project and region; see `endpoint_site.EndpointPlatform`."""

    def check(self, plan: EndpointPlan) -> None:
        """Sees whether the credentials can give the tokens that the service asks for.

        Raises:
            JobSpecError: They cannot; nothing is billed.
        """
        try:
            self._id_token(f"https://{service_id(plan.key)}-check.a.run.app")
        except AccessDeniedError as error:
            raise JobSpecError(f"{error} Nothing was started or billed.") from error

    def look(self, plan: EndpointPlan, operation: str | None) -> EndpointSnapshot:
        """Looks at one service; its own state tells more than the operation.

        Raises:
            CloudError: See `google_errors`.
        """
        found = self._service(plan.key)
        if found is None:
            return self._look_for(operation)
        part = self._part_of(found)
        state = found.terminal_condition.state.name
        is_over = not found.reconciling and state in ("CONDITION_SUCCEEDED", "CONDITION_FAILED")
        name = operation or f"{part.name}/operations/-"
        fault = None
        if is_over and state == "CONDITION_FAILED":
            fault = fault_of(_code(found.terminal_condition), found.terminal_condition.message)
        return EndpointSnapshot(
            parts=(part,),
            running=() if is_over else (RunningOperation(name, makes=not part.is_leaving),),
            is_up=is_over and fault is None,
            fault=fault,
            base_url=found.uri or None,
        )

    def make(self, step: str, plan: EndpointPlan) -> str | Fault | None:
        """Asks for the service."""
        from google.cloud.run_v2 import CreateServiceRequest, Service

        spec = cast(CloudRunEndpoint, plan.spec)
        request = CreateServiceRequest(
            parent=self._parent, service=Service(service(plan, spec)), service_id=service_id(plan.key)
        )
        return refused(
            self._request(f"make the service of {plan.key!r}", missing=f"region {self.location!r}"),
            # Not tried again here: a reply that got lost may have been that of an operation.
            lambda: str(
                self._client().create_service(request, retry=None, timeout=REQUEST_SECONDS).operation.name
            ),
        )

    def adopt(self, plan: EndpointPlan, seen: EndpointSnapshot) -> bool:
        """Labels the service, where no operation of it is under way.

        Raises:
            CloudError: See `google_errors`.
        """
        from google.cloud.run_v2 import Service, UpdateServiceRequest
        from google.protobuf.field_mask_pb2 import FieldMask

        if seen.running:
            return False
        for part in seen.parts:
            with translated(self._request(f"label {part.name!r}", missing=f"service {part.name!r}")):
                request = UpdateServiceRequest(
                    service=Service(name=part.name, labels=dict(plan.labels)),
                    update_mask=FieldMask(paths=["labels"]),
                )
                self._client().update_service(request, **self._patience())
        return True

    def ask(self, plan: EndpointPlan, seen: EndpointSnapshot) -> Answer:
        """Lets the invoker in where one is named, and asks the model for a few words.

        Raises:
            CloudError: There are no credentials, or nobody may be let in.
        """
        spec = cast(CloudRunEndpoint, plan.spec)
        if spec.invoker_service_account is not None:
            self._let_in(seen.parts[0].name, f"serviceAccount:{spec.invoker_service_account}")
        return ask(parse_model(self.model_spec(plan, seen)), self)

    def model_spec(self, plan: EndpointPlan, seen: EndpointSnapshot) -> dict[str, Any]:
        """A model spec for a job that asks this service, see `spec.OpenAIModel`."""
        return {
            "type": "openai",
            "name": served_name(plan.spec.model),
            "base_url": f"{seen.base_url}/v1",
            "id_token_audience": seen.base_url,
        }

    def find(self, key: str | None) -> list[Resource]:
        """Finds the service of an endpoint, or all of ours.

        Raises:
            CloudError: See `google_errors`.
        """
        request = self._request(f"list the services of {self.location!r}", missing=f"region {self.location!r}")
        with translated(request):
            pager = self._client().list_services(parent=self._parent, **self._patience())
            parts = [self._part_of(one) for one in islice(pager, MAX_LISTED)]
        ours = [part for part in parts if part.key is not None]
        return ours if key is None else [part for part in ours if part.key == key or part.id == service_id(key)]

    def running(self, key: str) -> list[RunningOperation]:
        """Nothing: a service can be deleted whatever is being done to it."""
        return []

    def remove(self, part: Resource) -> None:
        """Deletes a service.

        Raises:
            CloudError: See `google_errors`.
        """
        with translated(self._request(f"delete {part.name!r}", missing=f"service {part.name!r}")):
            self._client().delete_service(name=part.name, **self._patience())

    def cancel(self, operation: str) -> None:
        """Does nothing: Cloud Run cancels no operation."""

    def _look_for(self, operation: str | None) -> EndpointSnapshot:
        """There is no service: it is not made yet, or its operation ended without one."""
        if operation is None:
            return EndpointSnapshot(missing="service")
        try:
            with translated(self._request(f"show {operation!r}", missing=f"operation {operation!r}")):
                one = self._client().get_operation({"name": operation}, **self._patience())
        except CloudNotFoundError:
            return EndpointSnapshot(missing="service")
        if not one.done:
            return EndpointSnapshot(running=(RunningOperation(operation),))
        fault = fault_of(one.error.code, one.error.message) if one.error.code else None
        return EndpointSnapshot(missing=None if fault else "service", fault=fault)

    def _let_in(self, name: str, member: str) -> None:
        request = self._request(f"let {member!r} ask {name!r}", missing=f"service {name!r}")
        with translated(request):
            policy = self._client().get_iam_policy({"resource": name}, **self._patience())
            if any(binding.role == _INVOKER and member in binding.members for binding in policy.bindings):
                return
            policy.bindings.add(role=_INVOKER, members=[member])
            self._client().set_iam_policy({"resource": name, "policy": policy}, **self._patience())

    def _id_token(self, audience: str) -> str:
        with usable_connection(self.gcp_conn_id):
            return id_token(self.get_credentials(), audience)

    def _service(self, key: str) -> Any:
        name = f"{self._parent}/services/{service_id(key)}"
        try:
            with translated(self._request(f"show {name!r}", missing=f"service {name!r}")):
                return self._client().get_service(name=name, **self._patience())
        except CloudNotFoundError:
            return None

    def _part_of(self, found: Any) -> Resource:
        return Resource(
            kind="service",
            name=found.name,
            labels=dict(found.labels),
            usd_per_hour=_usd_per_hour(found),
            is_leaving="delete_time" in found,
        )

    @property
    def _parent(self) -> str:
        return f"projects/{self.project}/locations/{self.location}"

    def _client(self) -> Any:
        from google.cloud.run_v2 import ServicesClient

        return self._rest_client(ServicesClient)

    def _request(self, action: str, *, missing: str) -> CloudRequest:
        return CloudRequest(
            action=action,
            project=self.project,
            service="run.googleapis.com",
            role="roles/run.admin",
            missing=missing,
        )


def _code(condition: Any) -> int:
    """Cloud Run gives a reason and words, and no code."""
    return 7 if condition.reason.name == "PERMISSION_DENIED" else 13


def _usd_per_hour(found: Any) -> float | None:
    for container in found.template.containers:
        limits = dict(container.resources.limits)
        if gpus := limits.get("nvidia.com/gpu"):
            gpu = found.template.node_selector.accelerator
            cpus = limits.get("cpu", "0")
            cores = float(cpus[:-1]) / 1000 if cpus.endswith("m") else float(cpus)
            return cloud_run_usd_per_hour(gpu, int(gpus), cores, memory_gib(limits.get("memory", "0Gi")))
    return None
