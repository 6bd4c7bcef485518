"""Models brought onto endpoints of the emulated Vertex AI and taken off again, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_llmbeam.sandbox.billing.bill import VERTEX, Rent
from airflow_provider_llmbeam.sandbox.core.faults import Fault
from airflow_provider_llmbeam.sandbox.core.operations import Failure, Operation, failure
from airflow_provider_llmbeam.sandbox.core.rest import RestError
from airflow_provider_llmbeam.sandbox.storage.state import timestamp
from airflow_provider_llmbeam.sandbox.vertex.checks import Hardware, over_quota, stock_out
from airflow_provider_llmbeam.sandbox.vertex.state import Deployed, Endpoint, VertexState

_LOGS = (
    "https://console.cloud.google.com/logs/viewer?project={project}&resource=aiplatform.googleapis.com%2FEndpoint"
)


def check_quota(state: VertexState, project: str, location: str, hardware: Hardware, fault: Fault | None) -> None:
    """Check that a project may have so many accelerators more.

    Raises:
        RestError: It may not.
    """
    if hardware.gpu is None:
        return
    limits = None if state.gpu_quota is None else state.gpu_quota.get(location, {})
    limit = 0 if limits is None else limits.get(hardware.gpu.name, 0)
    if fault is not None and fault.kind == "quota":
        raise over_quota(hardware, location, limit)
    used = sum(
        one.gpus
        for one in state.bill.running
        if (one.kind, one.project, one.location, one.gpu) == (VERTEX, project, location, hardware.gpu.name)
    )
    if limits is not None and used + hardware.gpus > limit:
        raise over_quota(hardware, location, limit)


def begin(state: VertexState, endpoint: Endpoint, deployed: Deployed) -> None:
    """Put a model on its way: machines are rented from now on."""
    endpoint.deployed[deployed.id] = deployed
    hardware = deployed.hardware
    for replica in range(hardware.replicas):
        rent = Rent(
            kind=VERTEX,
            name=endpoint.name,
            gpu=hardware.gpu,
            gpus=hardware.gpus_per_replica,
            labels=lambda: endpoint.labels,
        )
        state.bill.start(_key(endpoint, deployed, replica), deployed.created_at, rent)


def fate(deployed: Deployed, endpoint: Endpoint, fault: Fault | None) -> Failure | None:
    """Return what the operation of a deployment is going to end in; None when it succeeds.

    Source of the wording: github.com/googleapis/python-aiplatform/issues/4559.
    """
    if fault is not None and fault.kind == "stock-out":
        hardware, status = deployed.hardware, fault.http_status or 503
        return failure(
            status, fault.message or stock_out(status, hardware.machine_type, hardware.gpu, endpoint.location)
        )
    if deployed.model.served.failure:
        link = _LOGS.format(project=endpoint.name.split("/")[1])
        # The service tells the link only; the container's last words are there, and here.
        text = f"Model server exited unexpectedly. Model server logs can be found at {link}"
        return failure(400, f"{text} : {deployed.model.served.failure}")
    return None


def complete(endpoint: Endpoint, deployed: Deployed, split: dict[str, Any]) -> Callable[[float], None]:
    """Return what happens when a deployment succeeds: it gets its share of the requests."""

    def happen(at: float) -> None:
        deployed.deployed_at = endpoint.updated_at = at
        endpoint.traffic = {(deployed.id if key == "0" else key): int(share) for key, share in split.items()}

    return happen


def remove(state: VertexState, endpoint: Endpoint, deployed: Deployed) -> Callable[[float], None]:
    """Return what happens when a model is off an endpoint, or its deployment fails: nothing is rented any more."""

    def happen(at: float) -> None:
        endpoint.deployed.pop(deployed.id, None)
        endpoint.traffic.pop(deployed.id, None)
        endpoint.updated_at = at
        for replica in range(deployed.hardware.replicas):
            state.bill.stop(_key(endpoint, deployed, replica), at)

    return happen


def check_idle(state: VertexState, name: str) -> None:
    """Check that no other operation is under way on a resource.

    Raises:
        RestError: There is one.
    """
    running = state.operations.running(name)
    if running:
        raise RestError(
            400,
            f'There are other operations running on the resource "{name}". Operation(s) are: '
            f"{', '.join(running)}.",
            "FAILED_PRECONDITION",
        )


def operation(
    state: VertexState,
    target: str,
    version: str,
    kind: str,
    answer: tuple[str, Callable[[float], dict[str, Any]]],
    *,
    failed: Failure | None = None,
    undo: Callable[[float], None] = lambda at: None,
    **metadata: Any,
) -> Operation:
    """Return an operation, not yet begun.

    Args:
        state: What it works on.
        target: The resource that its name begins with.
        version: Of the API it was asked for in.
        kind: Type of its metadata.
        answer: Type of the response, and what does the work and returns it.
        failed: What it is going to end in.
        undo: What happens then.
        **metadata: Besides the usual.
    """
    at = timestamp(state.timeline.now())
    prefix = f"type.googleapis.com/google.cloud.aiplatform.{'v1beta1' if version == 'v1beta1' else 'v1'}."
    type_name, finish = answer
    full_type = f"type.googleapis.com/{type_name}" if "." in type_name else f"{prefix}{type_name}"
    return Operation(
        name=f"{target}/operations/{state.next_id()}",
        metadata={
            "@type": f"{prefix}{kind}",
            "genericMetadata": {"createTime": at, "updateTime": at},
            **metadata,
        },
        finish=lambda at: {"@type": full_type, **finish(at)},
        undo=undo,
        failure=failed,
    )


def _key(endpoint: Endpoint, deployed: Deployed, replica: int) -> str:
    return f"{endpoint.name}/deployedModels/{deployed.id}/{replica}"
