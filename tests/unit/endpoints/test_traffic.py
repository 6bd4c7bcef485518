"""Promotion and rollback of a canary, on an endpoint in memory; a task may be killed between its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_llmbeam.endpoints.traffic import shift, split_of_promotion, split_of_rollback
from airflow_provider_llmbeam.exceptions import CloudUnavailableError, JobSpecError, StillBillingError
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel

NAME = "projects/acme/locations/us-central1/endpoints/e"
MODEL = RegisteredModel("projects/acme/locations/us-central1/models/support")
#: Vertex AI names projects by their numbers.
IN_REPLIES = "projects/123/locations/us-central1/models/support"


class Endpoint:
    """An endpoint with version 3 as model and version 4 as canary; an undeployment takes two polls.

    Args:
        ends_before: Number of the request that changes something at which the task is killed.
        is_stubborn: Whether undeployments are refused.
    """

    def __init__(self, ends_before: int | None = None, *, is_stubborn: bool = False) -> None:
        self.deployed = {"1": "3", "2": "4"}
        self.traffic = {"1": 90, "2": 10}
        self.going: dict[str, int] = {}
        self.requests: list[str] = []
        self.ends_before = ends_before
        self.is_stubborn = is_stubborn

    def get_endpoint(self, endpoint_id: str) -> Any:
        for own in [*self.going]:
            self.going[own] -= 1
            if self.going[own] == 0:
                del self.going[own], self.deployed[own]
        if endpoint_id != "e":
            return None
        found = [
            SimpleNamespace(id=own, model=f"{IN_REPLIES}@{version}", model_version_id=version)
            for own, version in self.deployed.items()
        ]
        return SimpleNamespace(name=NAME, deployed_models=found, traffic_split=dict(self.traffic))

    def update_traffic_split(self, name: str, percents: Mapping[str, int]) -> None:
        self._request(f"split {dict(percents)}")
        self.traffic = dict(percents)

    def undeploy_model(self, endpoint: str, deployed_model_id: str) -> None:
        self._request(f"undeploy {deployed_model_id}")
        assert not self.traffic.get(deployed_model_id), "Vertex AI refuses that"
        assert not self.going, "an operation is running"
        if self.is_stubborn:
            raise CloudUnavailableError("No reply.")
        self.going[deployed_model_id] = 2

    def list_running_operations(self, parent: str) -> Iterator[Any]:
        yield from self.going

    def _request(self, what: str) -> None:
        if len(self.requests) == self.ends_before:
            self.ends_before = None
            raise KeyboardInterrupt
        self.requests.append(what)


def move(endpoint: Endpoint, decide: Any, name: str = NAME, **arguments: Any) -> dict[str, Any]:
    clock = iter(range(0, 10_000, 5))
    return shift(
        endpoint,
        name,
        partial(decide, **arguments),
        within_seconds=60,
        sleep=lambda seconds: None,
        now=lambda: next(clock),
    )


@pytest.mark.parametrize("ends_before", [None, 0, 1])
def test_a_promoted_canary_gets_all_requests_and_the_other_version_is_undeployed_also_after_a_kill(
    ends_before: int | None,
) -> None:
    endpoint = Endpoint(ends_before)
    promote = partial(move, endpoint, split_of_promotion, model=MODEL.at("4"), percent=100)
    if ends_before is not None:
        with pytest.raises(KeyboardInterrupt):
            promote()
    assert promote() == {"endpoint": NAME, "percents": {f"{IN_REPLIES}@4": 100}}
    assert (endpoint.deployed, endpoint.traffic) == ({"2": "4"}, {"2": 100})
    assert endpoint.requests == ["split {'2': 100}", "undeploy 1"]
    promote()
    assert len(endpoint.requests) == 2, "a retry changes nothing"


@pytest.mark.parametrize("ends_before", [None, 0, 1])
def test_a_rollback_gives_the_requests_back_before_it_undeploys_the_canary_also_after_a_kill(
    ends_before: int | None,
) -> None:
    endpoint = Endpoint(ends_before)
    roll_back = partial(move, endpoint, split_of_rollback, model=MODEL.at("4"))
    if ends_before is not None:
        with pytest.raises(KeyboardInterrupt):
            roll_back()
    assert roll_back() == {"endpoint": NAME, "percents": {f"{IN_REPLIES}@3": 100}}
    assert (endpoint.deployed, endpoint.traffic) == ({"1": "3"}, {"1": 100})
    assert endpoint.requests == ["split {'1': 100}", "undeploy 2"]
    roll_back()
    assert len(endpoint.requests) == 2, "a retry changes nothing"


def test_a_larger_percentage_undeploys_nothing() -> None:
    endpoint = Endpoint()
    found = move(endpoint, split_of_promotion, model=MODEL.at("4"), percent=50)
    assert found["percents"] == {f"{IN_REPLIES}@4": 50, f"{IN_REPLIES}@3": 50}
    assert endpoint.requests == ["split {'2': 50, '1': 50}"]


def test_a_version_that_cannot_be_undeployed_is_named_with_what_removes_it() -> None:
    endpoint = Endpoint(is_stubborn=True)
    with pytest.raises(
        StillBillingError, match=r"support@4 deployed, .* bills\. No reply\..*--deployed-model-id=2"
    ):
        move(endpoint, split_of_rollback, model=MODEL.at("4"))
    assert endpoint.traffic == {"1": 100}, "it gets no requests"


def test_nothing_is_moved_to_a_version_that_is_not_there() -> None:
    endpoint = Endpoint()
    with pytest.raises(JobSpecError, match=r"has no '.*support@5' deployed\. Its requests did not change"):
        move(endpoint, split_of_promotion, model=MODEL.at("5"), percent=100)
    with pytest.raises(JobSpecError, match="there is no"):
        move(endpoint, split_of_rollback, name=f"{NAME}x", model=MODEL.at("4"))
    del endpoint.deployed["1"]
    with pytest.raises(JobSpecError, match="must have one model beside"):
        move(endpoint, split_of_rollback, model=MODEL.at("4"))
    assert endpoint.requests == []
