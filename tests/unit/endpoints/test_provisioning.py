from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.endpoints.provisioning import (
    MAX_FAILING_SECONDS,
    MAX_REFUSED,
    MAX_REFUSED_SECONDS,
    MAX_REMOVING_SECONDS,
    Adopt,
    Create,
    ProbeModel,
    Provisioner,
    ProvisioningEnded,
    ProvisioningHistory,
    Remove,
)
from airflow_provider_llmbeam.endpoints.resource import (
    CLOCK_SECONDS,
    OTHER_VERSION,
    EndpointSnapshot,
    LostReply,
    Resource,
    RunningOperation,
)
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError, RequestRefusedError
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import ConsecutiveFailures

pytestmark = pytest.mark.promise(3)

KEY = {"llmbeam-key": "k", "llmbeam-try": "2"}
NAME = "projects/p/locations/us-central1/endpoints/llmbeam-k"
OURS = Resource("endpoint", NAME, KEY)
EARLIER = Resource("endpoint", NAME, {**KEY, "llmbeam-try": "1"})
DEPLOYED = Resource("endpoint", NAME, KEY, {"7": "projects/p/locations/us-central1/models/llmbeam-k"}, 1.15)
CREATING, REMOVING = (
    RunningOperation(f"{NAME}/operations/1"),
    RunningOperation(f"{NAME}/operations/2", creates=False),
)
UNSURE = RunningOperation("projects/p/locations/us-central1/operations/3", is_sure=False)
STOCK_OUT, QUOTA = Fault("stock_out", "None left."), Fault("quota", "No quota.")


@pytest.fixture
def provisioner():
    return provisioner_at()


def provisioner_at(locations=("us-central1", "europe-west4"), **history):
    return Provisioner(
        locations,
        poll_interval_seconds=15.0,
        ready_within_seconds=3_600.0,
        attempt="2",
        history=ProvisioningHistory(0.0, **{"location_index": 0, **history}),
    )


@pytest.mark.parametrize(
    ("snapshot", "decision"),
    [
        (EndpointSnapshot(missing="endpoint"), Create("endpoint")),
        (EndpointSnapshot((OURS,), (CREATING,)), Wait(15.0)),
        (EndpointSnapshot((OURS,), missing="model"), Create("model")),
        (EndpointSnapshot((EARLIER,), (CREATING,)), Adopt()),
        (EndpointSnapshot((EARLIER,), missing="model"), Adopt()),
        (EndpointSnapshot((DEPLOYED,), is_up=True), ProbeModel()),
        (EndpointSnapshot((DEPLOYED,)), Wait(15.0)),
    ],
)
def test_the_snapshot_determines_the_decision(provisioner, snapshot, decision):
    assert provisioner.on_snapshot(snapshot, 10.0) == decision


def test_resources_that_are_being_deleted_are_waited_for(provisioner):
    assert isinstance(provisioner.on_snapshot(EndpointSnapshot((EARLIER,), (REMOVING,)), 10.0), Wait)
    assert isinstance(provisioner.on_snapshot(EndpointSnapshot(missing="endpoint"), 20.0), Create)


def test_an_incomplete_model_garden_deployment_is_removed_and_created_again(provisioner):
    assert isinstance(provisioner.on_snapshot(EndpointSnapshot((OURS,), missing="nothing usable"), 10.0), Remove)
    assert isinstance(provisioner.on_snapshot(EndpointSnapshot((OURS,)), 11.0), Remove)
    assert isinstance(provisioner.on_snapshot(EndpointSnapshot(missing="deployment"), 12.0), Wait)
    assert provisioner.on_snapshot(EndpointSnapshot(missing="deployment"), 13.0) == Create("deployment")
    assert provisioner.location == "us-central1"


def test_an_endpoint_with_another_version_of_the_model_is_removed_and_created_again(provisioner):
    other = EndpointSnapshot((DEPLOYED,), missing=OTHER_VERSION, is_up=True)
    assert isinstance(left := provisioner.on_snapshot(other, 10.0), Remove)
    assert "It serves another version of the model." in left.reason
    assert isinstance(provisioner.on_snapshot(EndpointSnapshot(missing="endpoint"), 12.0), Wait)
    assert provisioner.on_snapshot(EndpointSnapshot(missing="endpoint"), 13.0) == Create("endpoint")
    assert provisioner.location == "us-central1"


def test_the_fault_of_an_earlier_try_does_not_end_this_one(provisioner):
    service = Resource(
        "service", "projects/p/locations/us-central1/services/llmbeam-k", {**KEY, "llmbeam-try": "1"}
    )
    assert isinstance(provisioner.on_snapshot(EndpointSnapshot((service,), fault=STOCK_OUT), 1.0), Remove)
    assert provisioner.on_snapshot(EndpointSnapshot(missing="service"), 2.0) == Wait(
        0.0, "The resources of the earlier try are removed; starting again."
    )
    assert provisioner.on_snapshot(EndpointSnapshot(missing="service"), 3.0) == Create("service")
    assert provisioner.location == "us-central1"


def test_if_no_location_has_a_gpu_the_reason_lists_the_fault_of_each(provisioner):
    for fault in (STOCK_OUT, QUOTA):
        provisioner.on_fault(fault, 1.0)
        ended = provisioner.on_snapshot(EndpointSnapshot(missing="endpoint"), 2.0)
    assert ended.outcome == "stock_out"
    assert "us-central1 (no GPU is free): None left." in ended.reason
    assert "europe-west4 (the GPU quota of the project): No quota." in ended.reason
    assert "nothing bills" in ended.reason


@pytest.mark.parametrize(
    ("kind", "outcome"), [("refused", "refused"), ("denied", "refused"), ("failed", "failed")]
)
def test_a_fault_that_is_not_specific_to_a_location_ends_provisioning(provisioner, kind, outcome):
    provisioner.on_fault(Fault(kind, "No."), 1.0)
    assert provisioner.on_snapshot(EndpointSnapshot(), 2.0).outcome == outcome
    assert provisioner.location == "us-central1"


def test_an_endpoint_that_came_up_while_nobody_polled_is_asked_before_it_is_removed(provisioner):
    up = EndpointSnapshot((DEPLOYED,), is_up=True)
    assert provisioner.on_snapshot(up, 3_601.0) == ProbeModel()
    assert provisioner.on_answer(None, may_help_to_wait=False, now=3_602.0).outcome == "ready"
    left = provisioner.on_answer("HTTP 503.", may_help_to_wait=True, now=3_602.0)
    assert isinstance(left, Remove)
    assert "It did not answer within 3600 s (`ready_within_seconds`). HTTP 503." in left.reason


@pytest.mark.parametrize("is_up", [True, False])
def test_a_process_that_wakes_up_after_the_time_limit_leaves_what_another_try_took_over(is_up):
    provisioner = provisioner_at(labelled=True, is_ours=True, operation="op")
    later = Resource("endpoint", NAME, {**KEY, "llmbeam-try": "3"}, DEPLOYED.deployed)
    ended = provisioner.on_snapshot(EndpointSnapshot((later,), is_up=is_up, fault=QUOTA), 3_601.0)
    assert ended == ProvisioningEnded("failed", "was taken over by another try.")


def test_a_removal_that_fails_reports_what_is_still_billing(provisioner):
    provisioner.on_fault(Fault("failed", "No."), 0.0)
    ended = provisioner.on_snapshot(EndpointSnapshot((DEPLOYED,)), MAX_REMOVING_SECONDS + 1)
    assert ended.outcome == "still_billing"
    assert "about $1.15 an hour" in ended.reason
    assert "gcloud ai endpoints undeploy-model llmbeam-k --deployed-model-id=7" in ended.reason


def test_a_try_ends_without_a_removal_when_another_try_took_over_its_endpoint(provisioner):
    provisioner.on_created("op")
    assert provisioner.on_snapshot(EndpointSnapshot((OURS,), (CREATING,)), 1.0) == Wait(15.0)
    later = Resource("endpoint", NAME, {**KEY, "llmbeam-try": "3"})
    assert provisioner.on_snapshot(EndpointSnapshot((later,), (CREATING,)), 2.0) == ProvisioningEnded(
        "failed", "was taken over by another try."
    )


@pytest.mark.parametrize(
    ("snapshots", "location"),
    [
        ((EndpointSnapshot(missing="endpoint"), EndpointSnapshot((EARLIER,))), "europe-west4"),
        ((EndpointSnapshot((EARLIER,)), EndpointSnapshot((DEPLOYED,), is_up=True)), "europe-west4"),
        ((EndpointSnapshot(), EndpointSnapshot()), "us-central1"),
    ],
)
def test_the_survey_chooses_the_location_of_an_earlier_try(snapshots, location):
    provisioner = provisioner_at(location_index=None)
    provisioner.on_survey(snapshots, 0.0)
    assert provisioner.location == location


def test_a_process_with_an_old_history_goes_on_where_the_resources_of_its_try_are():
    provisioner = provisioner_at(operation="op-1", is_ours=True, leaving="stock_out", leaving_message="None left.")
    provisioner.on_survey([EndpointSnapshot(missing="endpoint"), EndpointSnapshot((OURS,))], 0.0)
    assert provisioner.history == ProvisioningHistory(0.0, location_index=1, is_ours=True)


@pytest.mark.parametrize(
    "snapshots",
    [
        (EndpointSnapshot(), EndpointSnapshot()),
        (EndpointSnapshot((DEPLOYED,), is_up=True), EndpointSnapshot((OURS,))),
    ],
)
def test_a_process_goes_on_with_its_history_if_nothing_contradicts_it(snapshots):
    provisioner = provisioner_at(location_index=1, operation="op-1", is_ours=True)
    before = provisioner.history
    provisioner.on_survey(snapshots, 0.0)
    assert provisioner.history == before


def test_a_loading_server_is_waited_for_and_a_refusing_one_is_removed(provisioner):
    for now in (0.0, 1_000.0, 2_000.0):
        assert isinstance(provisioner.on_answer("HTTP 503", may_help_to_wait=True, now=now), Wait)
    assert isinstance(provisioner.on_answer("HTTP 403", may_help_to_wait=False, now=2_000.0), Wait)
    later = 2_000.0 + MAX_REFUSED_SECONDS
    assert isinstance(provisioner.on_answer("HTTP 403", may_help_to_wait=False, now=later), Remove)


def test_failed_polls_back_off_and_end_the_wait(provisioner):
    waits, now = [], 0.0
    while isinstance(decision := provisioner.on_error(CloudUnavailableError("503."), now), Wait):
        waits.append(decision.seconds)
        now += decision.seconds
        assert now < 2 * MAX_FAILING_SECONDS + 1_000
    assert waits[:4] == [15.0, 30.0, 60.0, 120.0]
    assert max(waits) == 120.0
    assert decision.outcome == "still_billing"


def test_a_refusal_before_the_first_create_request_ends_as_refused():
    provisioner = provisioner_at()
    for _ in range(MAX_REFUSED - 1):
        assert isinstance(provisioner.on_error(RequestRefusedError("409."), 0.0), Wait)
    assert provisioner.on_error(RequestRefusedError("409."), 0.0).outcome == "refused"
    provisioner = provisioner_at(location_index=None)
    assert provisioner.on_error(AccessDeniedError("403."), 0.0).outcome == "refused"


def test_a_history_survives_a_round_trip_through_json():
    history = ProvisioningHistory(
        1.0,
        location_index=1,
        faults=(("us-central1", "quota", "No."),),
        operation="o",
        labelled=True,
        lost=LostReply(1.0, 2.0),
        failures=ConsecutiveFailures(count=2, since=1.0, kind="CloudUnavailableError", kind_count=2),
    )
    assert ProvisioningHistory.from_dict(json.loads(json.dumps(history.to_dict()))) == history


snapshots = st.builds(
    EndpointSnapshot,
    resources=st.sampled_from([(), (OURS,), (EARLIER,), (DEPLOYED,)]),
    operations=st.sampled_from([(), (CREATING,), (REMOVING,), (UNSURE,)]),
    missing=st.sampled_from([None, "endpoint", "model", "nothing usable"]),
    is_up=st.booleans(),
    fault=st.sampled_from([None, STOCK_OUT, Fault("failed", "No.")]),
)


@given(st.lists(snapshots, max_size=30))
def test_nothing_is_created_while_an_operation_runs_and_no_location_is_tried_twice(states):
    provisioner, indexes = provisioner_at(), [0]
    for now, snapshot in enumerate(states):
        decision = provisioner.on_snapshot(snapshot, float(now))
        if isinstance(decision, Create):
            assert not snapshot.operations
            provisioner.on_created("op")
        if isinstance(decision, ProvisioningEnded):
            assert decision.outcome != "ready"
            if decision.outcome in ("stock_out", "refused") or "deleted" in decision.reason:
                assert snapshot.is_empty
            break
        indexes.append(provisioner.history.location_index)
    assert indexes == sorted(indexes)


def test_an_operation_of_unknown_owner_is_waited_for_before_a_second_request(provisioner):
    wait = provisioner.on_snapshot(EndpointSnapshot(operations=(UNSURE,)), 10.0)
    assert (wait.seconds, UNSURE.name in wait.message) == (15.0, True)
    assert provisioner.on_snapshot(EndpointSnapshot(missing="deployment"), 11.0) == Create("deployment")


def test_an_operation_of_unknown_owner_is_named_when_the_time_is_over(provisioner):
    unsure = EndpointSnapshot(operations=(UNSURE,))
    assert isinstance(provisioner.on_snapshot(unsure, 3_601.0), Remove)
    ended = provisioner.on_snapshot(unsure, 3_602.0)
    assert ended.outcome == "still_billing"
    assert f"Operation {UNSURE.name!r} is still running and may bill" in ended.reason
    assert "nothing bills" not in ended.reason


@pytest.mark.parametrize("index", [None, 0])
def test_the_survey_waits_for_an_operation_of_unknown_owner_in_any_location(index):
    provisioner = provisioner_at(location_index=index)
    snapshots = [EndpointSnapshot(missing="deployment"), EndpointSnapshot(operations=(UNSURE,))]
    assert isinstance(provisioner.on_survey(snapshots, 0.0), Wait)
    assert provisioner.history.location_index == index
    assert provisioner.on_survey(snapshots, 3_601.0).outcome == "still_billing"
    found = [EndpointSnapshot((OURS,)), EndpointSnapshot(operations=(UNSURE,))]
    assert provisioner.on_survey(found, 0.0) is None
    assert provisioner.location == "us-central1"


def test_a_history_for_another_process_is_unsure_of_what_that_has_sent():
    history = ProvisioningHistory(1.0).for_another_process(5.0)
    assert history.lost == LostReply(5.0)
    assert history.in_new_process(9.0).lost == LostReply(5.0, 9.0)
    assert ProvisioningHistory(1.0).in_new_process(9.0).lost is None
    assert ProvisioningHistory(1.0, lost=LostReply(2.0, 3.0)).for_another_process(5.0).lost == LostReply(2.0)


def test_a_lost_reply_covers_its_time_and_the_difference_of_the_clocks():
    lost = LostReply(100.0).unite(LostReply(50.0, 60.0))
    assert lost == LostReply(50.0)
    assert LostReply(1.0, 2.0).unite(LostReply(3.0, 4.0)) == LostReply(1.0, 4.0)
    assert lost.may_have_started(None)
    assert lost.may_have_started(1e9)
    assert lost.may_have_started(50.0 - CLOCK_SECONDS)
    assert not lost.may_have_started(49.0 - CLOCK_SECONDS)
    assert not LostReply(50.0, 60.0).may_have_started(61.0 + CLOCK_SECONDS)
