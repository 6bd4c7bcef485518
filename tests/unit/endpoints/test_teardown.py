from __future__ import annotations

import logging
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.endpoints.resource import Resource, RunningOperation, still_billing
from airflow_provider_llmbeam.endpoints.teardown import removal_step, remove
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError, RequestRefusedError

pytestmark = pytest.mark.promise(3)

PLACE = "projects/p/locations/us-central1"
MODEL = Resource("model", f"{PLACE}/models/m", {"llmbeam-key": "k"})
FULL = Resource("endpoint", f"{PLACE}/endpoints/e", {"llmbeam-key": "k"}, {"7": f"{MODEL.name}@1"}, 1.15)
EMPTY = Resource("endpoint", f"{PLACE}/endpoints/e", {"llmbeam-key": "k"})
SERVICE = Resource("service", f"{PLACE}/services/s", {"llmbeam-key": "k"}, usd_per_hour=1.42)
CREATING = RunningOperation(f"{FULL.name}/operations/1")
UNDEPLOYING = RunningOperation(f"{FULL.name}/operations/2", creates=False)


class Platform:
    """A platform with given resources whose first `refusals` requests fail."""

    location = "us-central1"

    def __init__(self, *resources, operations=(), refusals=0):
        self.resources, self.operations, self.refusals, self.cancelled = (
            list(resources),
            list(operations),
            refusals,
            [],
        )

    def find(self, key):
        return list(self.resources), None

    def running_operations(self, key):
        return list(self.operations)

    def remove(self, resource):
        if self.refusals:
            self.refusals -= 1
            raise RequestRefusedError("FAILED_PRECONDITION.")
        at = self.resources.index(resource)
        if resource.deployed:
            self.resources[at] = EMPTY
        else:
            del self.resources[at]

    def cancel(self, operation):
        self.cancelled.append(operation)
        self.operations = []


def removed(platform, seconds=60.0):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    return remove(
        platform,
        "k",
        within_seconds=seconds,
        log=logging.getLogger(),
        sleep=sleep,
        now=lambda: now[0],
    )


def test_an_endpoint_is_undeployed_before_its_model_is_deleted():
    assert removal_step([FULL, MODEL], []).remove == (FULL,)
    assert removal_step([EMPTY, MODEL], []).remove == (EMPTY, MODEL)


def test_a_running_deployment_is_cancelled_and_waited_for():
    step = removal_step([EMPTY, MODEL], [CREATING])
    assert step.cancel == (CREATING,)
    assert step.remove == ()


def test_a_running_removal_is_not_requested_again():
    assert removal_step([FULL, MODEL], [UNDEPLOYING]).remove == ()


def test_resources_are_removed_in_the_order_that_the_service_accepts():
    platform = Platform(FULL, MODEL, operations=[CREATING])
    assert removed(platform) is None
    assert platform.resources == []
    assert platform.cancelled == [CREATING.name]


def test_a_refused_removal_is_requested_again():
    platform = Platform(FULL, MODEL, SERVICE, refusals=5)
    assert removed(platform) is None


def test_the_message_names_what_is_left_with_its_price_and_its_command():
    left = removed(Platform(FULL, MODEL, refusals=1_000))
    assert "still billing, about $1.15 an hour" in left
    assert "gcloud ai endpoints undeploy-model e --deployed-model-id=7 --region=us-central1" in left
    assert left.index("endpoints delete e") < left.index("models delete m")
    assert "FAILED_PRECONDITION" in left


def test_a_location_that_does_not_answer_is_polled_until_the_time_limit():
    platform, tries = Platform(SERVICE), []

    def find(key):
        tries.append(key)
        if len(tries) < 4:
            raise CloudUnavailableError("503.")
        return list(platform.resources), None

    platform.find = find
    assert removed(platform) is None


@pytest.mark.parametrize("refused", [2, 3])
def test_a_list_that_is_refused_is_read_again_before_the_try_ends(refused):
    platform, errors = Platform(SERVICE), [AccessDeniedError("403."), CloudUnavailableError("503.")]
    errors += [RequestRefusedError("409.")] * refused

    def find(key):
        if errors:
            raise errors.pop(0)
        return list(platform.resources), None

    platform.find = find
    with nullcontext() if refused < 3 else pytest.raises(RequestRefusedError):
        assert removed(platform) is None
    assert (platform.resources == []) == (refused < 3)


def test_a_gpu_is_removed_while_the_service_does_not_show_models():
    platform = Platform(FULL)
    platform.find = lambda key: (list(platform.resources), CloudUnavailableError("503."))
    assert removed(platform) == "Its model may be left, which costs nothing: 503."
    assert platform.resources == []


@pytest.mark.parametrize("error", [CloudUnavailableError("503."), AccessDeniedError("403.")])
def test_a_gpu_is_removed_while_the_service_does_not_list_operations(error):
    platform = Platform(FULL, MODEL)

    def running_operations(key):
        raise error

    platform.running_operations = running_operations
    with pytest.raises(type(error)):
        removed(platform)
    assert platform.resources == [EMPTY, MODEL]


def test_an_unknown_price_is_reported_as_unknown():
    unknown = Resource("service", f"{PLACE}/services/s")
    assert "at an unknown price" in still_billing([unknown])
    assert "costs nothing" in still_billing([EMPTY])


resources = st.lists(st.sampled_from([FULL, EMPTY, MODEL, SERVICE]), unique_by=lambda resource: resource.name)


@given(resources, st.lists(st.sampled_from([CREATING, UNDEPLOYING]), unique=True))
def test_a_deployed_model_is_never_deleted_and_a_removable_gpu_always_is(found, operations):
    step = removal_step(found, operations)
    if FULL in found:
        assert MODEL not in step.remove
        assert (FULL in step.remove) is (UNDEPLOYING not in operations)
    if SERVICE in found:
        assert SERVICE in step.remove


@given(resources, st.integers(0, 5))
def test_a_removal_ends_with_nothing_left(found, refusals):
    platform = Platform(*found, refusals=refusals)
    assert removed(platform, 300.0) is None
    assert platform.resources == []


UNSURE = RunningOperation(f"{PLACE}/operations/3", is_sure=False)


def test_an_operation_that_may_belong_to_another_run_is_not_cancelled_and_keeps_nothing_from_being_removed():
    step = removal_step([EMPTY, MODEL], [UNSURE])
    assert (step.cancel, step.remove) == ((), (EMPTY, MODEL))
