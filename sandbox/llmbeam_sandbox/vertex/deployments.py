"""Deployments of models to endpoints of the emulated Vertex AI, and their charges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmbeam_sandbox.billing.state import VERTEX, Rent
from llmbeam_sandbox.core import operations
from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.operations import Failure, Operation
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.vertex.checks import Hardware
from llmbeam_sandbox.vertex.responses import over_quota, stock_out
from llmbeam_sandbox.vertex.state import Deployed, Endpoint, VertexState

_LOGS = (
    "https://console.cloud.google.com/logs/viewer?project={project}&resource=aiplatform.googleapis.com%2FEndpoint"
)


def check_quota(state: VertexState, project: str, location: str, hardware: Hardware, fault: Fault | None) -> None:
    """Checks that a project's quota allows the additional accelerators.

    Raises:
        RestError: It does not.
    """
    if hardware.gpu is None:
        return
    limit = state.settings.gpu_limit(location, hardware.gpu.name)
    if fault is not None and fault.kind == "quota":
        raise over_quota(hardware, location, limit or 0)
    used = sum(
        one.gpus
        for one in state.bill.running
        if (one.kind, one.project, one.location, one.gpu) == (VERTEX, project, location, hardware.gpu.name)
    )
    if limit is not None and used + hardware.gpus > limit:
        raise over_quota(hardware, location, limit)


def begin(state: VertexState, endpoint: Endpoint, deployed: Deployed) -> None:
    """Starts the deployment of a model, and the charges for its machines."""
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


def outcome(deployed: Deployed, endpoint: Endpoint, fault: Fault | None) -> Failure | None:
    """Returns the failure in which a deployment will end; None when it will succeed.

    Source of the message: github.com/googleapis/python-aiplatform/issues/4559.
    """
    if fault is not None and fault.kind == "stock-out":
        hardware, status = deployed.hardware, fault.http_status or 503
        return operations.failure(
            status, fault.message or stock_out(status, hardware.machine_type, hardware.gpu, endpoint.location)
        )
    if deployed.model.served.failure:
        link = _LOGS.format(project=endpoint.name.split("/")[1])
        # The service sends the link only; the sandbox adds the container's last log message.
        text = f"Model server exited unexpectedly. Model server logs can be found at {link}"
        return operations.failure(400, f"{text} : {deployed.model.served.failure}")
    return None


def read_split(split: dict[str, Any], known: set[str]) -> dict[str, int]:
    """Returns the percentage of the requests of each deployed model; empty for none.

    Args:
        split: The percentages as sent.
        known: Ids that it may name.

    Raises:
        RestError: It names another model, or its sum is not 100. The wording is invented.
    """
    found = {key: int(share) for key, share in split.items()}
    if unknown := sorted(found.keys() - known):
        raise RestError(400, f"traffic_split: no DeployedModel has the ID {unknown[0]}.")
    if found and (sum(found.values()) != 100 or min(found.values()) < 0):
        raise RestError(400, f"traffic_split: the percentages must add up to 100; got {sum(found.values())}.")
    return found


def complete(endpoint: Endpoint, deployed: Deployed, split: dict[str, int]) -> Callable[[float], None]:
    """Returns the action that completes a deployment: the model gets its share of the requests."""

    def action(at: float) -> None:
        deployed.deployed_at = endpoint.updated_at = at
        if split:
            endpoint.traffic = {(deployed.id if key == "0" else key): share for key, share in split.items()}

    return action


def remove(state: VertexState, endpoint: Endpoint, deployed: Deployed) -> Callable[[float], None]:
    """Returns the action that removes a model from an endpoint, and ends its charges."""

    def action(at: float) -> None:
        endpoint.deployed.pop(deployed.id, None)
        endpoint.traffic.pop(deployed.id, None)
        endpoint.updated_at = at
        for replica in range(deployed.hardware.replicas):
            state.bill.stop(_key(endpoint, deployed, replica), at)

    return action


def check_idle(state: VertexState, name: str) -> None:
    """Checks that no other operation is running on a resource.

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
    failure: Failure | None = None,
    undo: Callable[[float], None] = lambda at: None,
    **metadata: Any,
) -> Operation:
    """Returns an operation that has not been started.

    Args:
        state: State of Vertex AI.
        target: Resource that its name begins with.
        version: Version of the API that requested it.
        kind: Type of its metadata.
        answer: Type of the response, and the action that completes the work and returns the response.
        failure: Failure in which it will end; None when it will succeed.
        undo: Action after a failure.
        **metadata: Additional metadata.
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
        failure=failure,
    )


def deletion(state: VertexState, resources: dict[str, Any], name: str, version: str) -> Operation:
    """Returns the operation that deletes a resource, which has not been started.

    Args:
        state: State of Vertex AI.
        resources: Resources of its kind, by full name.
        name: Full name of the resource.
        version: Version of the API that requested it.

    Raises:
        RestError: Another operation is running on the resource.
    """
    check_idle(state, name)

    def finish(at: float) -> dict[str, Any]:
        resources.pop(name, None)
        return {}

    return operation(state, name, version, "DeleteOperationMetadata", ("google.protobuf.Empty", finish))


def _key(endpoint: Endpoint, deployed: Deployed, replica: int) -> str:
    return f"{endpoint.name}/deployedModels/{deployed.id}/{replica}"
