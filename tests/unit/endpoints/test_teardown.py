from __future__ import annotations

import logging

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.endpoints.resource import Resource, RunningOperation, still_billing
from airflow_provider_llmbeam.endpoints.teardown import removal_step, remove
from airflow_provider_llmbeam.exceptions import CloudUnavailableError, RequestRefusedError

PLACE = "projects/p/locations/us-central1"
MODEL = Resource("model", f"{PLACE}/models/m", {"llmbeam-key": "k"})
FULL = Resource("endpoint", f"{PLACE}/endpoints/e", {"llmbeam-key": "k"}, {"7": f"{MODEL.name}@1"}, 1.15)
EMPTY = Resource("endpoint", f"{PLACE}/endpoints/e", {"llmbeam-key": "k"})
SERVICE = Resource("service", f"{PLACE}/services/s", {"llmbeam-key": "k"}, usd_per_hour=1.42)
MAKING = RunningOperation(f"{FULL.name}/operations/1")
UNDEPLOYING = RunningOperation(f"{FULL.name}/operations/2", makes=False)


class Place:
    """A location that holds what the test put there, and refuses as often as it was told to."""

    location = "us-central1"

    def __init__(self, *parts, running=(), refusals=0):
        self.parts, self.left, self.refusals, self.cancelled = list(parts), list(running), refusals, []

    def find(self, key):
        return list(self.parts)

    def running(self, key):
        return list(self.left)

    def remove(self, part):
        if self.refusals:
            self.refusals -= 1
            raise RequestRefusedError("FAILED_PRECONDITION.")
        at = self.parts.index(part)
        if part.deployed:
            self.parts[at] = EMPTY
        else:
            del self.parts[at]

    def cancel(self, operation):
        self.cancelled.append(operation)
        self.left = []


def gone(place, seconds=60.0, **arguments):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    return remove(
        place, "k", within_seconds=seconds, log=logging.getLogger(), sleep=sleep, now=lambda: now[0], **arguments
    )


def test_a_full_endpoint_is_emptied_first_and_its_model_kept_until_then():
    assert removal_step([FULL, MODEL], []).remove == (FULL,)
    assert removal_step([EMPTY, MODEL], []).remove == (EMPTY, MODEL)


def test_a_deployment_under_way_is_cancelled_and_waited_for():
    step = removal_step([EMPTY, MODEL], [MAKING])
    assert step.cancel == (MAKING,)
    assert step.remove == ()


def test_what_is_being_removed_is_not_asked_for_again():
    assert removal_step([FULL, MODEL], [UNDEPLOYING]).remove == ()


def test_everything_is_removed_in_the_order_that_the_service_takes():
    place = Place(FULL, MODEL, running=[MAKING])
    assert gone(place) is None
    assert place.parts == []
    assert place.cancelled == [MAKING.name]


def test_what_is_refused_is_asked_for_again():
    place = Place(FULL, MODEL, SERVICE, refusals=5)
    assert gone(place) is None


def test_what_is_left_is_named_with_its_price_and_its_command():
    left = gone(Place(FULL, MODEL, refusals=1_000))
    assert "still billing, about $1.15 an hour" in left
    assert "gcloud ai endpoints undeploy-model e --deployed-model-id=7 --region=us-central1" in left
    assert left.index("endpoints delete e") < left.index("models delete m")
    assert "FAILED_PRECONDITION" in left


def test_a_location_that_does_not_answer_is_asked_until_the_time_is_over():
    place, tries = Place(SERVICE), []

    def find(key):
        tries.append(key)
        if len(tries) < 4:
            raise CloudUnavailableError("503.")
        return list(place.parts)

    place.find = find
    assert gone(place) is None


def test_what_another_try_took_over_is_left_alone():
    theirs = Resource("endpoint", FULL.name, {"llmbeam-key": "k", "llmbeam-try": "2"}, FULL.deployed, 1.15)
    place = Place(theirs, running=[MAKING])
    assert gone(place, attempt="1") is None
    assert place.parts == [theirs]
    assert place.cancelled == []


def test_a_price_that_is_not_known_is_said_so():
    unknown = Resource("service", f"{PLACE}/services/s")
    assert "at a price that is not known here" in still_billing([unknown])
    assert "costs nothing" in still_billing([EMPTY])


parts = st.lists(st.sampled_from([FULL, EMPTY, MODEL, SERVICE]), unique_by=lambda part: part.name)


@given(parts, st.lists(st.sampled_from([MAKING, UNDEPLOYING]), unique=True))
def test_a_model_in_use_is_never_asked_for_and_a_gpu_that_can_be_is(found, running):
    step = removal_step(found, running)
    if FULL in found:
        assert MODEL not in step.remove
        assert (FULL in step.remove) is (UNDEPLOYING not in running)
    if SERVICE in found:
        assert SERVICE in step.remove


@given(parts, st.integers(0, 5))
def test_everything_is_gone_in_the_end(found, refusals):
    place = Place(*found, refusals=refusals)
    assert gone(place, 300.0) is None
    assert place.parts == []
