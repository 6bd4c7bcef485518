"""Shifts the requests of an endpoint between the versions that are deployed to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_llmbeam.endpoints.platforms.vertex_ai_requests import version_of
from airflow_provider_llmbeam.endpoints.resource import Resource
from airflow_provider_llmbeam.endpoints.teardown import ROUND_SECONDS
from airflow_provider_llmbeam.exceptions import CloudError, JobSpecError, StillBillingError
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel


class EndpointHook(Protocol):
    """The requests to an endpoint, see `hooks.vertex_ai.VertexAIHook`."""

    def get_endpoint(self, endpoint_id: str) -> Any:
        """Returns an endpoint; `None` if there is none of that id."""

    def update_traffic_split(self, name: str, percents: Mapping[str, int]) -> None:
        """Replaces the percentages."""

    def undeploy_model(self, endpoint: str, deployed_model_id: str) -> None:
        """Starts the removal of a deployed model."""

    def list_running_operations(self, parent: str) -> Iterable[Any]:
        """Yields the unfinished operations of a resource."""


@dataclass(frozen=True, slots=True)
class TrafficSplit:
    """The requests of an endpoint as they are to be.

    Attributes:
        percents: Percentage of the requests by the id of the deployed model.
        undeploy: Ids of the deployed models to remove.
    """

    percents: Mapping[str, int]
    undeploy: tuple[str, ...] = ()


def split_of_promotion(endpoint: Any, model: RegisteredModel, percent: int) -> TrafficSplit:
    """Returns the split that gives a version a percentage of the requests; with 100 the others are undeployed.

    Raises:
        JobSpecError: The version is not deployed, or it is not known which other one gets the rest.
    """
    own, others = _find_deployed(endpoint, model)
    if own is None:
        raise JobSpecError(
            f"`endpoint`: {endpoint.name!r} has no '{model}' deployed. Its requests did not change."
        )
    if percent == 100:
        return TrafficSplit({own: 100}, others)
    return TrafficSplit({own: percent, _only(endpoint, model, others): 100 - percent})


def split_of_rollback(endpoint: Any, model: RegisteredModel) -> TrafficSplit | None:
    """Returns the split that undeploys a version and gives the other one all requests; `None` if it is not there.

    Raises:
        JobSpecError: There is no other version, or several.
    """
    own, others = _find_deployed(endpoint, model)
    return None if own is None else TrafficSplit({_only(endpoint, model, others): 100}, (own,))


def shift(
    hook: EndpointHook,
    name: str,
    decide: Callable[[Any], TrafficSplit | None],
    *,
    within_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Changes the split of an endpoint, and polls until what it undeploys is gone; a second call changes nothing.

    The requests move first and at once. What a killed task has not undeployed, its retry does, or the teardown.

    Args:
        hook: Hook of the location of the endpoint.
        name: Resource name of the endpoint.
        decide: Returns the split of an endpoint; `None` changes nothing.
        within_seconds: Time limit of the removal, in seconds.
        sleep: Waits between two polls, in seconds.
        now: Monotonic clock, in seconds.

    Returns:
        `endpoint`, and the `percents` of the requests by version.

    Raises:
        JobSpecError: There is no such endpoint, or it has no such split.
        StillBillingError: A model could not be undeployed; it gets no requests.
        CloudError: A request failed; a retry goes on.
    """
    endpoint = _read(hook, name)
    split = decide(endpoint)
    if split is not None and dict(endpoint.traffic_split) != split.percents:
        hook.update_traffic_split(endpoint.name, split.percents)
    deadline, refusal = now() + within_seconds, ""
    while left := {one.id: one.model for one in endpoint.deployed_models if split and one.id in split.undeploy}:
        if not any(hook.list_running_operations(endpoint.name)):
            for own in left:
                try:
                    hook.undeploy_model(endpoint.name, own)
                except CloudError as error:
                    refusal = str(error)
        if now() + ROUND_SECONDS > deadline:
            billed = Resource("endpoint", endpoint.name, deployed=left)
            raise StillBillingError(
                f"{endpoint.name!r} still has {', '.join(left.values())} deployed, which gets no requests and "
                f"bills. {refusal} A retry of this task, the teardown and the sweeper undeploy it; by hand: "
                f"`{billed.undeploy_command}`."
            )
        sleep(ROUND_SECONDS)
        endpoint = _read(hook, name)
    versions = {
        one.id: f"{one.model.partition('@')[0]}@{one.model_version_id}" for one in endpoint.deployed_models
    }
    percents = split.percents if split is not None else dict(endpoint.traffic_split)
    return {"endpoint": name, "percents": {versions[own]: share for own, share in percents.items()}}


def _read(hook: EndpointHook, name: str) -> Any:
    if (found := hook.get_endpoint(name.rpartition("/")[2])) is None:
        raise JobSpecError(f"`endpoint`: there is no {name!r}. No requests were moved.")
    return found


def _find_deployed(endpoint: Any, model: RegisteredModel) -> tuple[str | None, tuple[str, ...]]:
    """Returns the id of the deployed model of a version, and those of the others."""
    wanted = version_of(model.model, model.version)
    found = {one.id: version_of(one.model, one.model_version_id) == wanted for one in endpoint.deployed_models}
    own = next((key for key, is_own in found.items() if is_own), None)
    return own, tuple(key for key in found if key != own)


def _only(endpoint: Any, model: RegisteredModel, others: tuple[str, ...]) -> str:
    if len(others) != 1:
        raise JobSpecError(
            f"`endpoint`: {endpoint.name!r} must have one model beside '{model}', which gets the other requests; "
            f"it has {len(others)}. Its requests did not change."
        )
    return others[0]
