"""Endpoints on Cloud Run: each is one service with a GPU."""

from __future__ import annotations

from typing import Any, cast

from airflow_provider_llmbeam.endpoints.fault import Fault, fault_of
from airflow_provider_llmbeam.endpoints.platform import EndpointPlan, SentRequests
from airflow_provider_llmbeam.endpoints.platforms.base import HookPlatform
from airflow_provider_llmbeam.endpoints.platforms.cloud_run_requests import memory_gib, served_name, service
from airflow_provider_llmbeam.endpoints.price import cloud_run_usd_per_hour
from airflow_provider_llmbeam.endpoints.refusal import operation_or_fault
from airflow_provider_llmbeam.endpoints.resource import (
    EndpointSnapshot,
    LostReply,
    Resource,
    RunningOperation,
)
from airflow_provider_llmbeam.exceptions import AccessDeniedError, JobSpecError
from airflow_provider_llmbeam.hooks.cloud_run import CloudRunHook
from airflow_provider_llmbeam.probe.answer import Answer, ask
from airflow_provider_llmbeam.spec.endpoint.cloud_run import CloudRunEndpoint
from airflow_provider_llmbeam.spec.endpoint.identity import service_id
from airflow_provider_llmbeam.spec.model import parse_model

_INVOKER = "roles/run.invoker"
#: `google.rpc.Code` by `Condition.CommonReason` of google-cloud-run 0.16 (run_v2); other reasons are INTERNAL. The
#: check of secrets fails for a missing permission and for a missing version alike; a retry resolves neither.
_CODES = {
    "CONTAINER_PERMISSION_DENIED": 7,
    "CONTAINER_IMAGE_UNAUTHORIZED": 7,
    "ENCRYPTION_KEY_PERMISSION_DENIED": 7,
    "SECRETS_ACCESS_CHECK_FAILED": 7,
    "CONTAINER_MISSING": 5,
    "VPC_NETWORK_NOT_FOUND": 5,
}
_INTERNAL = 13


class CloudRunPlatform(HookPlatform[CloudRunHook]):
    """Provisions, finds and removes services on Cloud Run; see `endpoints.platform.EndpointPlatform`."""

    def check(self, plan: EndpointPlan) -> None:
        """Checks that the credentials can issue the ID tokens that the service requires.

        Raises:
            JobSpecError: They cannot; nothing is billed.
            CloudError: A request failed.
        """
        try:
            self._hook.get_id_token(f"https://{service_id(plan.key)}-check.a.run.app")
        except AccessDeniedError as error:
            raise JobSpecError(f"{error} Nothing was started or billed.") from error

    def poll(self, plan: EndpointPlan, operation: str | None, lost: LostReply | None = None) -> EndpointSnapshot:
        """Returns the present state of a service, which is more precise than that of its operation."""
        found = self._hook.get_service(service_id(plan.key))
        if found is None:
            return self._poll_operation(operation)
        resource = _resource(found)
        state = found.terminal_condition.state.name
        is_over = not found.reconciling and state in ("CONDITION_SUCCEEDED", "CONDITION_FAILED")
        name = operation or f"{resource.name}/operations/-"
        fault = None
        if is_over and state == "CONDITION_FAILED":
            fault = fault_of(_code(found), found.terminal_condition.message)
        return EndpointSnapshot(
            resources=(resource,),
            operations=() if is_over else (RunningOperation(name, creates=not resource.is_being_deleted),),
            is_up=is_over and fault is None,
            fault=fault,
            base_url=found.uri or None,
        )

    def create(self, step: str, plan: EndpointPlan) -> str | Fault | None:
        """Requests the service."""
        fields = service(plan, cast(CloudRunEndpoint, plan.spec))
        return operation_or_fault(lambda: self._hook.create_service(service_id(plan.key), fields))

    def adopt(self, plan: EndpointPlan, snapshot: EndpointSnapshot) -> bool:
        """Labels the service, unless an operation of it is running."""
        if snapshot.operations:
            return False
        for resource in snapshot.resources:
            self._hook.update_labels(resource.name, plan.labels)
        return True

    def probe(self, plan: EndpointPlan, snapshot: EndpointSnapshot) -> Answer:
        """Grants the invoker role if the spec names an invoker, and sends a small request to the model."""
        spec = cast(CloudRunEndpoint, plan.spec)
        if spec.invoker_service_account is not None:
            member = f"serviceAccount:{spec.invoker_service_account}"
            self._hook.add_iam_member(snapshot.resources[0].name, _INVOKER, member)
        return ask(parse_model(self.model_spec(plan, snapshot)), self._hook)

    def model_spec(self, plan: EndpointPlan, snapshot: EndpointSnapshot) -> dict[str, Any]:
        """Returns the model spec of a job that uses this service, see `spec.OpenAIModel`."""
        return {
            "type": "openai",
            "name": served_name(plan.spec.model),
            "base_url": f"{snapshot.base_url}/v1",
            "id_token_audience": snapshot.base_url,
        }

    def find(self, key: str | None) -> tuple[list[Resource], None]:
        """Finds the service of an endpoint; with `None` those of every endpoint of this package."""
        found = map(_resource, self._hook.list_services())
        ours = [resource for resource in found if resource.key is not None]
        if key is None:
            return ours, None
        return [one for one in ours if one.key == key or one.id == service_id(key)], None

    def running_operations(self, key: str) -> list[RunningOperation]:
        """Returns an empty list: a service can be deleted while an operation of it is running."""
        return []

    def started_operations(self, sent: SentRequests) -> list[RunningOperation]:
        """Returns an empty list: the service exists, with its name, from the reply to its create request on."""
        return []

    def remove(self, resource: Resource) -> None:
        """Requests the deletion of a service."""
        self._hook.delete_service(resource.name)

    def cancel(self, operation: str) -> None:
        """Does nothing: Cloud Run cannot cancel operations."""

    def _poll_operation(self, operation: str | None) -> EndpointSnapshot:
        """Returns the state without a service: it is not created yet, or its operation failed."""
        found = None if operation is None else self._hook.get_operation(operation)
        if operation is None or found is None:
            return EndpointSnapshot(missing="service")
        if not found.done:
            return EndpointSnapshot(operations=(RunningOperation(operation),))
        fault = fault_of(found.error.code, found.error.message) if found.error.code else None
        return EndpointSnapshot(missing=None if fault else "service", fault=fault)


def _resource(found: Any) -> Resource:
    return Resource(
        kind="service",
        name=found.name,
        labels=dict(found.labels),
        usd_per_hour=_usd_per_hour(found),
        is_being_deleted="delete_time" in found,
    )


def _code(found: Any) -> int:
    """Returns a `google.rpc.Code`; a condition has a reason, which may be that of a part of the service only."""
    reasons = (condition.reason.name for condition in (found.terminal_condition, *found.conditions))
    return next((_CODES[reason] for reason in reasons if reason in _CODES), _INTERNAL)


def _usd_per_hour(found: Any) -> float | None:
    for container in found.template.containers:
        limits = dict(container.resources.limits)
        if gpus := limits.get("nvidia.com/gpu"):
            gpu = found.template.node_selector.accelerator
            cpus = limits.get("cpu", "0")
            cores = float(cpus[:-1]) / 1000 if cpus.endswith("m") else float(cpus)
            memory = memory_gib(limits.get("memory", "0Gi"))
            instances = found.template.scaling.min_instance_count
            return cloud_run_usd_per_hour(gpu, int(gpus), cores, memory, instances)
    return None
