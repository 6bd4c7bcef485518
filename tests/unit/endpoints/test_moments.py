"""No GPU outlives its run, wherever a try of `provision` ends: every moment of every life of an endpoint.

A moment is a request of the try, before or after it takes effect; `moments.py` has the lives.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import product

import pytest

from airflow_provider_llmbeam.endpoints import monitor as monitors
from airflow_provider_llmbeam.endpoints import sweep as sweeps
from airflow_provider_llmbeam.endpoints.platform import SentRequests
from airflow_provider_llmbeam.endpoints.resource import CLOCK_SECONDS, LostReply
from airflow_provider_llmbeam.endpoints.teardown import remove
from tests.unit.endpoints.fake_cloud import OPERATION_SECONDS, Cloud, owner_of
from tests.unit.endpoints.moments import (
    EVENTS,
    EXPIRES_SECONDS,
    KEY,
    KINDS,
    LIVES,
    LOCATIONS,
    OTHER,
    PAGE,
    PLATFORMS,
    QUOTA,
    SPECS,
    Try,
    garden_resources_of,
    with_tables,
)

pytestmark = pytest.mark.promise(3)

log = logging.getLogger(__name__)


class Killed(BaseException):
    """`kill -9`."""


@pytest.fixture(params=LIVES, ids=str)
def life(request):
    return request.param


@pytest.fixture
def clock(life, monkeypatch):
    """Returns a function that makes the cloud of a life, whose clock removals use, too."""

    def make():
        cloud = cloud_of(life.kind)
        timed = partial(remove, sleep=cloud.sleep, now=lambda: cloud.now)
        for module in (monitors, sweeps):
            monkeypatch.setattr(module, "remove", timed)
        return cloud

    return make


def cloud_of(kind):
    return Cloud(garden_resources=garden_resources_of(kind))


def platforms_of(cloud, kind):
    return [PLATFORMS[SPECS[kind]["type"]](cloud, location) for location in LOCATIONS]


def moments_of(life, clock):
    """Returns every moment: the number of a request, and whether it has taken effect."""
    cloud = clock()
    list(Try(cloud, life.kind).play(life))
    return product(range(1, cloud.count + 1), (False, True))


def each_moment(life, clock):
    """Yields the cloud and the try after it was killed, for every moment."""
    for moment in moments_of(life, clock):
        cloud = clock()

        def kill(*at, moment=moment):
            if at == moment:
                raise Killed

        cloud.at_request, first = kill, Try(cloud, life.kind)
        with pytest.raises(Killed):
            list(first.play(life))
        yield cloud, first


def removed(platform, *, sent):
    """Removes an endpoint as a teardown does; returns the sentences about what is left."""
    cloud = platform.cloud
    clocked = {"sleep": cloud.sleep, "now": lambda: cloud.now}
    return remove(platform, KEY, within_seconds=300.0, log=log, sent=sent, **clocked)


def let_time_pass(cloud):
    cloud.free()
    cloud.sleep(10 * OPERATION_SECONDS)


def is_healthy(cloud):
    """Whether the only GPU will come up if nobody removes it."""
    return bool(cloud.billing) and not any(one.is_ending for one in cloud.billing)


def test_every_poll_of_a_life_requests_what_the_table_says(life, clock):
    cloud = clock()
    assert list(Try(cloud, life.kind).play(life)) == [expected for _, expected in life.moments]
    assert cloud.at_once <= life.gpus
    assert len(cloud.billing) == life.gpus * life.steps.endswith(("ready", "still_billing"))
    assert cloud.is_empty != life.steps.endswith(("ready", "still_billing"))


def test_another_triggerer_before_every_poll_decides_the_same(life, clock):
    present, found = Try(clock(), life.kind), []
    for events, _ in life.moments:
        present = present.restart()
        for event in events:
            EVENTS[event](present.cloud)
        found.append(present.poll())
    assert found == [expected for _, expected in life.moments]


def test_another_triggerer_that_has_the_history_of_the_worker_ends_with_all_gpus_or_none(life, clock):
    """Airflow keeps what the worker knew as it deferred, not what the killed triggerer knew."""
    for number in range(len(life.moments)):
        first = Try(clock(), life.kind)
        steps, deferred = first.play(life), None
        for _ in range(number + 1):
            next(steps)
            deferred = deferred or first.for_another_process()
        healthy = is_healthy(first.cloud)
        first.cloud.free()
        ended = first.restart(deferred).poll_until_result()
        assert first.cloud.at_once <= life.gpus
        if ended.outcome == "ready":
            assert len(first.cloud.billing) == life.gpus
        else:
            assert not healthy or "ready_within_seconds" in ended.message
            assert first.cloud.is_empty


def test_the_next_try_adopts_what_a_killed_one_left_and_pays_for_no_gpu_twice(life, clock):
    for cloud, _ in each_moment(life, clock):
        before = len([one for charges in cloud.charges.values() for one in charges])
        healthy, left = is_healthy(cloud), len(cloud.billing)
        cloud.free()
        ended = Try(cloud, life.kind, "2").poll_until_result()
        assert ended.outcome == "ready", ended.message
        assert owner_of(cloud) == {"2"}
        assert (cloud.at_once, len(cloud.billing)) == (life.gpus, life.gpus)
        if healthy:
            after = len([one for charges in cloud.charges.values() for one in charges])
            assert after - before == life.gpus - left


@pytest.mark.parametrize("is_stubborn", [False, True], ids=["", "operations cannot be cancelled"])
@pytest.mark.parametrize("is_recorded", [False, True], ids=["", "its last operation is recorded"])
def test_a_teardown_removes_what_a_killed_try_left_also_while_it_is_being_created(
    life, clock, is_stubborn, is_recorded
):
    for cloud, first in each_moment(life, clock):
        cloud.free()
        cloud.is_stubborn = is_stubborn
        operation = first.history.operation if is_recorded else None
        sent = SentRequests(first.spec, operation, LostReply(0.0, cloud.now))
        for platform in platforms_of(cloud, life.kind):
            assert removed(platform, sent=sent) is None
        let_time_pass(cloud)
        assert cloud.is_empty


def test_a_try_that_is_abandoned_between_two_polls_leaves_nothing(life, clock):
    for number in range(len(life.moments) + 1):
        present = Try(clock(), life.kind)
        steps = present.play(life)
        for _ in range(number):
            next(steps)
        present.cloud.free()
        present.monitor.abandon("The task was marked.", within_seconds=300.0)
        assert present.cloud.is_empty
        assert present.monitor.poll().message.endswith("was abandoned.")
        let_time_pass(present.cloud)
        assert present.cloud.is_empty


def test_a_try_that_is_abandoned_during_a_request_leaves_nothing(life, clock):
    for moment in moments_of(life, clock):
        cloud = clock()
        present = Try(cloud, life.kind)

        def abandon(*at, moment=moment, present=present):
            if at == moment:
                present.cloud.free()
                present.monitor.abandon("The task was killed.", within_seconds=300.0)

        cloud.at_request = abandon
        for _ in present.play(life):
            if not cloud.is_held:
                break
        assert present.monitor.poll().message.endswith("was abandoned.")
        let_time_pass(cloud)
        assert cloud.is_empty


def test_a_try_that_times_out_during_a_request_leaves_nothing(life, clock):
    for cloud, first in each_moment(life, clock):
        cloud.free()
        first.monitor.abandon("The task ended.", within_seconds=300.0)
        assert cloud.is_empty
        let_time_pass(cloud)
        assert cloud.is_empty


@pytest.mark.parametrize("life", LIVES[: len(KINDS)], ids=str)
def test_a_try_that_cannot_remove_what_it_created_reports_what_is_still_billing(life, clock, caplog):
    present = Try(clock(), life.kind)
    list(present.play(life))
    present.monitor.abandon("The task was killed.", within_seconds=0.0)
    assert "The task was killed. " in caplog.text
    assert "is still billing, about $1." in caplog.text
    assert "gcloud " in caplog.text


def test_a_try_that_wakes_up_removes_nothing_that_a_later_one_has_taken_over(life, clock):
    """It polls and is abandoned. One that has never found its label on the endpoint is only abandoned."""
    for cloud, first in each_moment(life, clock):
        cloud.free()
        ready = Try(cloud, life.kind, "2").poll_until_result()
        assert ready.outcome == "ready"
        before = len(cloud.requests)
        if first.history.labelled:
            ended = first.monitor.poll()
            assert ended.outcome != "ready"
            assert ended.message.endswith("was taken over by another try.") or ended.location != ready.location
        first.monitor.abandon("The task was cleared.", within_seconds=300.0)
        assert cloud.requests[before:] == []
        assert is_healthy(cloud)


@pytest.mark.parametrize("polls", range(4))
def test_a_later_try_is_ready_though_the_one_before_is_abandoned_once_the_endpoint_has_its_label(
    life, clock, polls
):
    """Before, what it requests may be cancelled: then it fails and leaves nothing."""
    for number in range(len(life.moments) + 1):
        first = Try(clock(), life.kind)
        steps = first.play(life)
        for _ in range(number):
            next(steps)
        first.cloud.free()
        second = Try(first.cloud, life.kind, "2")
        for _ in range(polls):
            second.poll()
        is_labelled = owner_of(first.cloud) == {"2"}
        first.monitor.abandon("The task was cleared.", within_seconds=300.0)
        is_ready = second.poll_until_result().outcome == "ready"
        assert is_ready or not is_labelled
        assert first.cloud.at_once <= life.gpus
        assert (is_healthy(first.cloud), first.cloud.is_empty) == (is_ready, not is_ready)


def test_the_sweeper_removes_what_a_killed_try_left_once_it_has_expired_and_not_before(life, clock):
    def swept(cloud):
        settings = {"deployments": ["prod"], "expired_before": cloud.now, "gone_within_seconds": 300.0, "log": log}
        endpoints = [sweeps.Endpoints(platform=each, **settings) for each in platforms_of(cloud, life.kind)]
        return sweeps.sweep(endpoints, deployments=["prod"], dry_run=False, log=log)

    for cloud, _ in each_moment(life, clock):
        let_time_pass(cloud)
        left = dict(cloud.resources)
        assert (swept(cloud).deleted, cloud.resources) == ([], left)
        cloud.sleep(EXPIRES_SECONDS)
        manifest = swept(cloud)
        assert (sorted(manifest.deleted), manifest.failed) == (sorted(left), [])
        assert cloud.is_empty


# Deployments of other runs


@pytest.fixture(params=["garden", "garden_late"])
def busy(request):
    """A cloud in which another run deploys the same model in each location, which never ends."""
    cloud = cloud_of(request.param)
    for platform in platforms_of(cloud, request.param):
        platform.create("deployment", Try(cloud, request.param, key=OTHER).plan)
    cloud.is_held = False
    cloud.requests.clear()
    return cloud


@pytest.mark.parametrize("quota", [[], [QUOTA]], ids=["", "no quota in the first location"])
@pytest.mark.parametrize("lost", [None, LostReply(0.0)], ids=["", "teardown without a record"])
def test_a_first_try_and_its_teardown_wait_for_no_deployment_of_another_run(busy, quota, lost):
    busy.create_errors += quota
    first = Try(busy, "garden")
    ended = first.poll_until_result()
    assert (ended.outcome, ended.location) == ("ready", LOCATIONS[len(quota)])
    platform = platforms_of(busy, "garden")[len(quota)]
    assert removed(platform, sent=SentRequests(first.spec, lost=lost)) is None
    assert "cancel" not in busy.requests


def test_a_try_that_never_learns_whose_the_operation_is_names_it_and_requests_nothing(busy):
    ended = Try(busy, "garden", "2").poll_until_result()
    assert (ended.outcome, busy.requests) == ("still_billing", [])
    for one in busy.running:
        assert f"Operation {one.name!r} is still running and may bill" in ended.message
    assert "(`ready_within_seconds`)" in ended.message


def test_a_teardown_that_never_learns_whose_the_operation_is_names_it_and_leaves_it(busy):
    sent = SentRequests(Try(busy, "garden").spec, lost=LostReply(0.0, busy.now))
    for platform, operation in zip(platforms_of(busy, "garden"), busy.running, strict=True):
        assert f"Operation {operation.name!r} is still running and may bill" in removed(platform, sent=sent)
    assert busy.requests == []


def test_deployments_of_another_time_are_not_waited_for(busy):
    busy.sleep(2 * CLOCK_SECONDS)
    first = Try(busy, "garden")
    second = first.restart(first.for_another_process())
    assert second.poll_until_result().outcome == "ready"


def test_the_page_has_the_tables():
    assert PAGE.read_text() == with_tables(PAGE.read_text()), "python -m tests.unit.endpoints.moments"
