from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.endpoints.provisioning import (
    MAX_FAILING_SECONDS,
    MAX_REFUSED_SECONDS,
    MAX_REMOVING_SECONDS,
    Adopt,
    Ask,
    Make,
    Provisioner,
    ProvisioningEnded,
    ProvisioningHistory,
    Remove,
)
from airflow_provider_llmbeam.endpoints.resource import EndpointSnapshot, Resource, RunningOperation
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError, RequestRefusedError
from airflow_provider_llmbeam.polling.poller import Wait

KEY = {"llmbeam-key": "k", "llmbeam-try": "2"}
NAME = "projects/p/locations/us-central1/endpoints/llmbeam-k"
OURS = Resource("endpoint", NAME, KEY)
EARLIER = Resource("endpoint", NAME, {**KEY, "llmbeam-try": "1"})
DEPLOYED = Resource("endpoint", NAME, KEY, {"7": "projects/p/locations/us-central1/models/llmbeam-k"}, 1.15)
MAKING, REMOVING = RunningOperation(f"{NAME}/operations/1"), RunningOperation(f"{NAME}/operations/2", makes=False)
STOCK_OUT, QUOTA = Fault("stock_out", "None left."), Fault("quota", "No quota.")


@pytest.fixture
def provisioner():
    return made()


def made(locations=("us-central1", "europe-west4"), **memory):
    return Provisioner(
        locations,
        poll_interval_seconds=15.0,
        ready_within_seconds=3_600.0,
        attempt="2",
        memory=ProvisioningHistory(0.0, **{"place": 0, **memory}),
    )


@pytest.mark.parametrize(
    ("seen", "decision"),
    [
        (EndpointSnapshot(missing="endpoint"), Make("endpoint")),
        (EndpointSnapshot((OURS,), (MAKING,)), Wait(15.0)),
        (EndpointSnapshot((OURS,), missing="model"), Make("model")),
        (EndpointSnapshot((EARLIER,), (MAKING,)), Adopt()),
        (EndpointSnapshot((EARLIER,), missing="model"), Adopt()),
        (EndpointSnapshot((DEPLOYED,), is_up=True), Ask()),
        (EndpointSnapshot((DEPLOYED,)), Wait(15.0)),
    ],
)
def test_what_is_seen_decides_what_is_next(provisioner, seen, decision):
    assert provisioner.on_seen(seen, 10.0) == decision


def test_what_is_being_deleted_is_waited_for(provisioner):
    assert isinstance(provisioner.on_seen(EndpointSnapshot((EARLIER,), (REMOVING,)), 10.0), Wait)
    assert isinstance(provisioner.on_seen(EndpointSnapshot(missing="endpoint"), 20.0), Make)


def test_what_model_garden_left_half_done_is_removed_and_made_again(provisioner):
    assert isinstance(provisioner.on_seen(EndpointSnapshot((OURS,), missing="nothing usable"), 10.0), Remove)
    assert isinstance(provisioner.on_seen(EndpointSnapshot((OURS,)), 11.0), Remove)
    assert isinstance(provisioner.on_seen(EndpointSnapshot(missing="deployment"), 12.0), Wait)
    assert provisioner.on_seen(EndpointSnapshot(missing="deployment"), 13.0) == Make("deployment")
    assert provisioner.location == "us-central1"


def test_a_fault_of_an_earlier_try_says_nothing_of_this_one(provisioner):
    service = Resource(
        "service", "projects/p/locations/us-central1/services/llmbeam-k", {**KEY, "llmbeam-try": "1"}
    )
    assert isinstance(provisioner.on_seen(EndpointSnapshot((service,), fault=STOCK_OUT), 1.0), Remove)
    assert provisioner.on_seen(EndpointSnapshot(missing="service"), 2.0) == Wait(
        0.0, "It is gone; beginning anew."
    )
    assert provisioner.on_seen(EndpointSnapshot(missing="service"), 3.0) == Make("service")
    assert provisioner.location == "us-central1"


def test_a_stock_out_goes_on_in_the_next_location_once_all_of_it_is_gone(provisioner):
    provisioner.on_made("op")
    assert isinstance(provisioner.on_seen(EndpointSnapshot((OURS,), fault=STOCK_OUT), 1.0), Remove)
    assert isinstance(provisioner.on_seen(EndpointSnapshot((OURS,)), 2.0), Remove)
    assert provisioner.on_seen(EndpointSnapshot(missing="endpoint"), 3.0) == Wait(
        0.0, "Going on with 'europe-west4'."
    )
    assert provisioner.location == "europe-west4"
    assert provisioner.memory.operation is None
    assert provisioner.on_seen(EndpointSnapshot(missing="endpoint"), 4.0) == Make("endpoint")


def test_when_no_location_has_it_one_sentence_lists_what_each_said(provisioner):
    for fault in (STOCK_OUT, QUOTA):
        provisioner.on_fault(fault, 1.0)
        ended = provisioner.on_seen(EndpointSnapshot(missing="endpoint"), 2.0)
    assert ended.outcome == "stock_out"
    assert "us-central1 (no GPU is free): None left." in ended.reason
    assert "europe-west4 (the GPU quota of the project): No quota." in ended.reason
    assert "nothing bills" in ended.reason


@pytest.mark.parametrize(
    ("kind", "outcome"), [("refused", "refused"), ("denied", "refused"), ("failed", "failed")]
)
def test_what_another_location_would_repeat_ends_it(provisioner, kind, outcome):
    provisioner.on_fault(Fault(kind, "No."), 1.0)
    assert provisioner.on_seen(EndpointSnapshot(), 2.0).outcome == outcome
    assert provisioner.location == "us-central1"


def test_an_endpoint_that_takes_too_long_is_removed(provisioner):
    assert isinstance(provisioner.on_seen(EndpointSnapshot((DEPLOYED,), (MAKING,)), 3_601.0), Remove)
    ended = provisioner.on_seen(EndpointSnapshot(), 3_700.0)
    assert ended.outcome == "failed"
    assert "3600 s" in ended.reason


def test_what_cannot_be_removed_is_said_to_bill(provisioner):
    provisioner.on_fault(Fault("failed", "No."), 0.0)
    ended = provisioner.on_seen(EndpointSnapshot((DEPLOYED,)), MAX_REMOVING_SECONDS + 1)
    assert ended.outcome == "still_billing"
    assert "about $1.15 an hour" in ended.reason
    assert "gcloud ai endpoints undeploy-model llmbeam-k --deployed-model-id=7" in ended.reason


def test_a_try_whose_endpoint_another_took_over_ends_and_leaves_it_alone(provisioner):
    provisioner.on_made("op")
    assert provisioner.on_seen(EndpointSnapshot((OURS,), (MAKING,)), 1.0) == Wait(15.0)
    later = Resource("endpoint", NAME, {**KEY, "llmbeam-try": "3"})
    assert provisioner.on_seen(EndpointSnapshot((later,), (MAKING,)), 2.0) == ProvisioningEnded(
        "failed", "was taken over by another try."
    )


def test_what_model_garden_made_is_labelled(provisioner):
    provisioner.on_made("op")
    bare = Resource("endpoint", NAME, {"llmbeam-key": "k"})
    assert provisioner.on_seen(EndpointSnapshot((bare,), (MAKING,)), 1.0) == Adopt()


def test_the_location_of_an_earlier_try_is_found_again(provisioner):
    provisioner.on_survey([EndpointSnapshot(missing="endpoint"), EndpointSnapshot((EARLIER,))])
    assert provisioner.location == "europe-west4"
    provisioner.on_survey([EndpointSnapshot((EARLIER,)), EndpointSnapshot((DEPLOYED,), is_up=True)])
    assert provisioner.location == "europe-west4"
    provisioner.on_survey([EndpointSnapshot(), EndpointSnapshot()])
    assert provisioner.location == "us-central1"


def test_an_answer_ends_it(provisioner):
    assert provisioner.on_answer(None, may_help_to_wait=False, now=1.0).outcome == "ready"


def test_a_server_that_loads_is_waited_for_and_one_that_refuses_is_given_up(provisioner):
    for now in (0.0, 1_000.0, 2_000.0):
        assert isinstance(provisioner.on_answer("HTTP 503", may_help_to_wait=True, now=now), Wait)
    assert isinstance(provisioner.on_answer("HTTP 403", may_help_to_wait=False, now=2_000.0), Wait)
    later = 2_000.0 + MAX_REFUSED_SECONDS
    assert isinstance(provisioner.on_answer("HTTP 403", may_help_to_wait=False, now=later), Remove)


def test_looks_that_fail_are_repeated_less_and_less_often_and_not_for_ever(provisioner):
    waits, now = [], 0.0
    while isinstance(decision := provisioner.on_error(CloudUnavailableError("503."), now), Wait):
        waits.append(decision.seconds)
        now += decision.seconds
        assert now < 2 * MAX_FAILING_SECONDS + 1_000
    assert waits[:4] == [15.0, 30.0, 60.0, 120.0]
    assert max(waits) == 120.0
    assert decision.outcome == "still_billing"


def test_a_refusal_before_anything_was_made_bills_nothing():
    provisioner = made()
    assert provisioner.on_error(RequestRefusedError("400."), 0.0).outcome == "refused"
    provisioner = made(place=None)
    assert provisioner.on_error(AccessDeniedError("403."), 0.0).outcome == "refused"


def test_a_memory_is_made_again_from_json():
    memory = ProvisioningHistory(
        1.0, place=1, faults=(("us-central1", "quota", "No."),), operation="o", labelled=True
    )
    assert ProvisioningHistory.from_dict(json.loads(json.dumps(memory.to_dict()))) == memory


seen_states = st.builds(
    EndpointSnapshot,
    parts=st.sampled_from([(), (OURS,), (EARLIER,), (DEPLOYED,)]),
    running=st.sampled_from([(), (MAKING,), (REMOVING,)]),
    missing=st.sampled_from([None, "endpoint", "model", "nothing usable"]),
    is_up=st.booleans(),
    fault=st.sampled_from([None, STOCK_OUT, Fault("failed", "No.")]),
)


@given(st.lists(seen_states, max_size=30))
def test_nothing_is_made_while_something_is_being_removed_and_no_location_is_tried_twice(states):
    provisioner, places = made(), [0]
    for now, seen in enumerate(states):
        decision = provisioner.on_seen(seen, float(now))
        if isinstance(decision, Make):
            assert not seen.running
            provisioner.on_made("op")
        if isinstance(decision, ProvisioningEnded):
            assert decision.outcome != "ready"
            if decision.outcome in ("stock_out", "refused") or "deleted" in decision.reason:
                assert seen.is_empty
            break
        places.append(provisioner.memory.place)
    assert places == sorted(places)
