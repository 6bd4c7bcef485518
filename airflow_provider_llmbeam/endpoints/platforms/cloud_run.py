"""Endpoints on Cloud Run: each is one service with a GPU."""

from __future__ import annotations

from typing import Any, cast

from airflow_provider_llmbeam.endpoints.fault import Fault, fault_of, operation_or_fault
from airflow_provider_llmbeam.endpoints.platform import Answer, EndpointPlan, SentRequests
from airflow_provider_llmbeam.endpoints.platforms.base import HookPlatform, ask, cloud_run_usd_per_hour
from airflow_provider_llmbeam.endpoints.resource import (
    EndpointSnapshot,
    LostReply,
    Resource,
    RunningOperation,
)
from airflow_provider_llmbeam.exceptions import AccessDeniedError, JobSpecError
from airflow_provider_llmbeam.hooks.cloud_run import CloudRunHook
from airflow_provider_llmbeam.spec.endpoint.cloud_run import MAX_CONCURRENCY, CloudRunEndpoint
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

_PORT = 8000
#: Directory where a bucket with the model is mounted.
_MODEL_DIRECTORY = "/models"
#: Longest timeout that Cloud Run allows for a request.
_REQUEST_SECONDS = 3_600
#: 120 probes at an interval of 15 s: half an hour for the weights to load.
_PROBE_INTERVAL_SECONDS, _MAX_PROBES = 15, 120
_INGRESS = {
    "all": "INGRESS_TRAFFIC_ALL",
    "internal": "INGRESS_TRAFFIC_INTERNAL_ONLY",
    "internal-and-cloud-load-balancing": "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER",
}


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
            raise JobSpecError(str(error)) from error

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


def service(plan: EndpointPlan, spec: CloudRunEndpoint) -> dict[str, Any]:
    """Returns the fields of a `Service`."""
    gpu = spec.machine.accelerator_type
    network = {"vpc_access": _vpc(spec)} if spec.network else {}
    account = {"service_account": spec.service_account} if spec.service_account else {}
    encryption = {"encryption_key": spec.kms_key_name} if spec.kms_key_name else {}
    return {
        "labels": dict(plan.labels),
        "ingress": _INGRESS[spec.ingress],
        "template": {
            "scaling": {"min_instance_count": spec.min_instances, "max_instance_count": spec.max_instances},
            "timeout": {"seconds": _REQUEST_SECONDS},
            "execution_environment": "EXECUTION_ENVIRONMENT_GEN2",
            "max_instance_request_concurrency": min(spec.concurrency or spec.sequences or 64, MAX_CONCURRENCY),
            "node_selector": {"accelerator": gpu},
            # Zonal redundancy raises the price of a GPU and needs a separate quota.
            "gpu_zonal_redundancy_disabled": True,
            "containers": [_container(spec)],
            "volumes": _volumes(spec),
            **network,
            **account,
            **encryption,
        },
    }


def served_name(model: str) -> str:
    """Returns the name that the server uses for the model, and under which answers are kept.

    That of a directory is its whole address, so that no answer is used for weights in another directory.
    """
    return model.rstrip("/")


def memory_gib(memory: str) -> float:
    """Converts `32Gi` or `32768Mi` to GiB."""
    return float(memory[:-2]) / (1024 if memory.endswith("Mi") else 1)


def _container(spec: CloudRunEndpoint) -> dict[str, Any]:
    limits = {
        "nvidia.com/gpu": str(spec.gpu_count),
        "cpu": str(spec.resolved_cpu),
        "memory": spec.resolved_memory,
    }
    path, mounts = spec.model, []
    if spec.model.startswith("gs://"):
        path = f"{_MODEL_DIRECTORY}/{spec.model.removeprefix('gs://').partition('/')[2].rstrip('/')}"
        mounts = [{"name": "models", "mount_path": _MODEL_DIRECTORY}]
    return {
        "name": "vllm",
        "image": spec.image,
        "args": [*_vllm_args(spec, path), *spec.args],
        "env": _environment(spec),
        "resources": {"limits": limits, "startup_cpu_boost": True},
        "ports": [{"name": "http1", "container_port": _PORT}],
        "volume_mounts": mounts,
        "startup_probe": {
            "timeout_seconds": 10,
            "period_seconds": _PROBE_INTERVAL_SECONDS,
            "failure_threshold": _MAX_PROBES,
            "http_get": {"path": "/health", "port": _PORT},
        },
    }


def _vllm_args(spec: CloudRunEndpoint, path: str) -> list[str]:
    arguments = {
        "--model": path,
        "--served-model-name": served_name(spec.model),
        "--port": _PORT,
        "--max-model-len": spec.length_tokens,
        "--max-num-seqs": spec.sequences,
    }
    return [f"{name}={value}" for name, value in arguments.items() if value is not None]


def _environment(spec: CloudRunEndpoint) -> list[dict[str, Any]]:
    if spec.hf_token_secret is None:
        return []
    secret, _, version = spec.hf_token_secret.rpartition("/versions/")
    return [
        {
            "name": "HF_TOKEN",
            "value_source": {"secret_key_ref": {"secret": secret, "version": version}},
        }
    ]


def _volumes(spec: CloudRunEndpoint) -> list[dict[str, Any]]:
    if not spec.model.startswith("gs://"):
        return []
    bucket = spec.model.removeprefix("gs://").partition("/")[0]
    return [{"name": "models", "gcs": {"bucket": bucket, "read_only": True}}]


def _vpc(spec: CloudRunEndpoint) -> dict[str, Any]:
    interface = {"network": spec.network, **({"subnetwork": spec.subnetwork} if spec.subnetwork else {})}
    return {"network_interfaces": [interface], "egress": "PRIVATE_RANGES_ONLY"}
