"""Deployments from Model Garden whose operation has no known name: one GPU, and nothing left, at every moment.

Documented of an unfinished operation are only its model and its time. Nobody knows when endpoint and model exist,
so every test is run with both: at once, and only when the deployment has ended.
"""

from __future__ import annotations

import logging
import time

import pytest

from airflow_provider_llmbeam.endpoints import teardown
from airflow_provider_llmbeam.endpoints.platform import SentRequests
from airflow_provider_llmbeam.endpoints.platforms.factory import platform_factory
from airflow_provider_llmbeam.endpoints.platforms.vertex_ai_requests import may_be_model
from airflow_provider_llmbeam.endpoints.provisioning import ProvisioningHistory
from airflow_provider_llmbeam.endpoints.resource import CLOCK_SECONDS, LostReply
from airflow_provider_llmbeam.endpoints.teardown import remove
from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook
from airflow_provider_llmbeam.polling.poller import poll_until_result
from airflow_provider_llmbeam.sandbox import EndpointSettings, Fault, Sandbox
from airflow_provider_llmbeam.spec import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_id, endpoint_labels
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.triggers.endpoint import EndpointTrigger

pytestmark = [pytest.mark.slow, pytest.mark.full]

SECONDS = 0.3
DEPLOY, CANCEL = "vertex.modelGarden.deploy", "vertex.operations.cancel"
GARDEN = {"type": "vertex", "model": "google/gemma3@gemma-3-4b-it", "accept_eula": True}
HUB = {"type": "vertex", "model": "Qwen/Qwen3-4B", "machine_type": "g2-standard-12"}
KEY, OTHER = identity("gpu-0123456789ab"), identity("gpu-ba9876543210")
PLACES = ("us-central1", "europe-west4")
log = logging.getLogger(__name__)


class KilledError(BaseException):
    """The process ends here."""


@pytest.fixture(params=["at_once", "when_deployed"])
def sandbox(request):
    """A sandbox in which a deployment takes time; its operations tell no id of ours."""
    settings = EndpointSettings(
        operation_seconds=SECONDS, garden_resources=request.param, garden_model_id="anything"
    )
    with Sandbox(endpoints=settings) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(teardown, "ROUND_SECONDS", 0.1)


@pytest.fixture
def trigger(google):
    """Returns a function that makes the trigger of one try of a run."""

    def make(attempt="1", key=KEY, kind=GARDEN, locations=PLACES[:1], ready_within_seconds=60.0, history=None):
        spec = parse_endpoint({**kind, "project": google.project, "locations": locations})
        now = time.time()
        labels = endpoint_labels(
            key, deployment="prod", expires_at=now + 60, dag_id="d", run_id="r", attempt=attempt
        )
        lost = None if attempt == "1" else LostReply(now - 10, now)
        return EndpointTrigger(
            endpoint=spec.model_dump(mode="json"),
            key=key,
            labels=labels,
            history=(history or ProvisioningHistory(now, lost=lost)).to_dict(),
            poll_interval_seconds=0.02,
            ready_within_seconds=ready_within_seconds,
        )

    return make


@pytest.fixture
def killed(monkeypatch):
    """Returns a function that polls until the process is killed: before it reads the reply to its request."""
    deploy = VertexAIHook.deploy_from_model_garden

    def run(made, *, in_location="us-central1"):
        def without_reply(hook, fields):
            operation = deploy(hook, fields)
            if hook.location == in_location:
                raise KilledError
            return operation

        with monkeypatch.context() as patched:
            patched.setattr(VertexAIHook, "deploy_from_model_garden", without_reply)
            with pytest.raises(KilledError):
                poll_until_result(made.make_poller(log))

    return run


def removed(trigger, since, *, location="us-central1", within_seconds=30.0, key=KEY):
    """Removes an endpoint as the teardown of a run does whose provision recorded only its start."""
    platform = platform_factory("vertex", trigger.endpoint["project"], "google_cloud_default", None)(location)
    sent = SentRequests(parse_endpoint(trigger.endpoint), lost=LostReply(since, time.time()))
    return remove(platform, key, within_seconds=within_seconds, log=log, sent=sent)


def is_empty(sandbox):
    return not (sandbox.endpoints or sandbox.models or sandbox.bill.running)


def gpus(sandbox):
    """Number of GPUs that were billed, whether they still are or not."""
    return len([*sandbox.bill.lines, *sandbox.bill.running])


def calls(sandbox, method):
    return sandbox.stats()["methods"].get(method, {}).get("calls", 0)


@pytest.mark.parametrize("kind", [GARDEN, HUB], ids=["garden", "hub"])
@pytest.mark.parametrize("pause", [0.0, 2 * SECONDS])
def test_a_retry_takes_over_what_a_killed_try_requested(sandbox, trigger, killed, kind, pause):
    killed(trigger("1", kind=kind))
    time.sleep(pause)
    ended = poll_until_result(trigger("2", kind=kind).make_poller(log))
    assert ended.outcome == "ready", ended.message
    assert (gpus(sandbox), calls(sandbox, DEPLOY)) == (1, 1)
    (endpoint,) = sandbox.endpoints
    assert endpoint["labels"]["llmbeam-try"] == "2"


@pytest.mark.parametrize("pause", [0.0, 2 * SECONDS])
def test_a_teardown_waits_for_what_a_killed_try_requested_and_removes_it(sandbox, trigger, killed, pause):
    since, made = time.time(), trigger("1")
    killed(made)
    time.sleep(pause)
    assert removed(made, since) is None
    time.sleep(2 * SECONDS)
    assert is_empty(sandbox)
    assert (gpus(sandbox), calls(sandbox, CANCEL)) == (1, 0)


@pytest.mark.parametrize("polls", range(0, 12, 2))
def test_a_try_resumes_wherever_the_one_before_was_killed(sandbox, trigger, polls):
    first = trigger("1").make_poller(log)
    for _ in range(polls):
        first.poll()
        time.sleep(SECONDS / 6)
    ended = poll_until_result(trigger("2").make_poller(log))
    assert (ended.outcome, gpus(sandbox)) == ("ready", 1), ended.message


def test_a_try_that_is_abandoned_during_the_request_removes_what_it_starts(sandbox, trigger, monkeypatch):
    monitor, deploy = trigger().make_poller(log), VertexAIHook.deploy_from_model_garden

    def killed_meanwhile(hook, fields):
        operation = deploy(hook, fields)
        monitor.abandon("The task was killed.", within_seconds=30.0)  # as a signal handler does
        return operation

    monkeypatch.setattr(VertexAIHook, "deploy_from_model_garden", killed_meanwhile)
    assert poll_until_result(monitor).outcome == "failed"
    time.sleep(2 * SECONDS)
    assert is_empty(sandbox)
    assert gpus(sandbox) == 1


def test_a_try_that_times_out_during_the_request_removes_what_it_starts(sandbox, trigger, monkeypatch, caplog):
    monitor, deploy = trigger().make_poller(log), VertexAIHook.deploy_from_model_garden

    def timed_out(hook, fields):
        deploy(hook, fields)
        raise KilledError  # as Airflow's `execution_timeout`, which the operator answers with `abandon`

    monkeypatch.setattr(VertexAIHook, "deploy_from_model_garden", timed_out)
    with pytest.raises(KilledError):
        monitor.poll()
    monitor.abandon("The task ended.", within_seconds=30.0)
    assert is_empty(sandbox)
    assert gpus(sandbox) == 1
    assert "nothing bills" in caplog.text


@pytest.mark.parametrize("fault", [Fault(kind="disconnect"), Fault(kind="error", http_status=503)])
def test_a_try_whose_request_got_no_reply_requests_no_second_gpu(sandbox, trigger, fault):
    sandbox.faults.queue(DEPLOY, fault)
    ended = poll_until_result(trigger().make_poller(log))
    assert (ended.outcome, gpus(sandbox)) == ("ready", 1), ended.message


def test_a_retry_waits_in_all_locations_before_it_requests_a_gpu_in_the_first(sandbox, trigger, killed):
    sandbox.faults.queue(DEPLOY, Fault(kind="quota"))
    killed(trigger("1", locations=PLACES), in_location=PLACES[1])
    ended = poll_until_result(trigger("2", locations=PLACES).make_poller(log))
    assert (ended.outcome, ended.location, gpus(sandbox)) == ("ready", PLACES[1], 1), ended.message


def test_another_triggerer_waits_for_what_the_first_one_requested(sandbox, trigger, killed):
    """The worker's history, with which it starts, is from before the requests of the first one."""
    worker = ProvisioningHistory(time.time(), location_index=0).left_to_others(time.time())
    killed(trigger("1", history=worker))
    ended = poll_until_result(trigger("1", history=worker).make_poller(log))
    assert (ended.outcome, gpus(sandbox)) == ("ready", 1), ended.message


# Deployments of other runs


@pytest.fixture
def other(sandbox, trigger):
    """Another run, whose deployment of the same model goes on for an hour."""
    sandbox.faults.when(DEPLOY, endpoint_id(OTHER), Fault(kind="slow", after_seconds=3_600.0))
    monitor = trigger(key=OTHER).make_poller(log)
    monitor.poll()
    return monitor.provisioner.history.operation


def test_a_first_try_does_not_wait_for_the_deployments_of_other_runs(sandbox, trigger, other):
    made = trigger()
    assert poll_until_result(made.make_poller(log)).outcome == "ready"
    assert (
        remove(
            platform_factory("vertex", made.endpoint["project"], "google_cloud_default", None)("us-central1"),
            KEY,
            within_seconds=5.0,
            log=log,
            sent=SentRequests(parse_endpoint(made.endpoint)),
        )
        is None
    )


def test_a_first_try_that_fails_at_once_does_not_wait_for_other_runs_in_the_next_location(sandbox, trigger, other):
    sandbox.faults.when(DEPLOY, f"/{PLACES[0]}", Fault(kind="quota"))
    ended = poll_until_result(trigger(locations=PLACES).make_poller(log))
    assert (ended.outcome, ended.location) == ("ready", PLACES[1])


def test_a_try_that_never_learns_whose_the_operation_is_names_it_and_requests_nothing(sandbox, trigger, other):
    ended = poll_until_result(trigger("2", ready_within_seconds=1.0).make_poller(log))
    assert ended.outcome == "still_billing"
    assert f"Operation '{other}' is still running and may bill" in ended.message
    assert "(`ready_within_seconds`)" in ended.message
    assert (calls(sandbox, DEPLOY), calls(sandbox, CANCEL)) == (1, 0)


def test_a_teardown_that_never_learns_whose_the_operation_is_names_it_and_leaves_it(sandbox, trigger, other):
    left = removed(trigger(), time.time() - 10, within_seconds=0.5)
    assert f"Operation '{other}' is still running and may bill" in left
    assert (gpus(sandbox), calls(sandbox, CANCEL)) == (1, 0)


def test_a_teardown_that_found_its_endpoint_waits_for_no_other_operation(sandbox, trigger, other):
    since, made = time.time(), trigger()
    assert poll_until_result(made.make_poller(log)).outcome == "ready"
    assert removed(made, since, within_seconds=10.0) is None


def test_operations_of_another_time_or_of_another_model_are_not_waited_for(sandbox, trigger, other):
    earlier = time.time() - 1_000
    history = ProvisioningHistory(time.time(), lost=LostReply(earlier, earlier + 1))
    assert poll_until_result(trigger("2", history=history).make_poller(log)).outcome == "ready"
    ended = poll_until_result(trigger("2", key=identity("x-0123456789cd"), kind=HUB).make_poller(log))
    assert ended.outcome == "ready"


@pytest.mark.parametrize(
    ("model", "name", "may_be"),
    [
        (GARDEN["model"], "publishers/google/models/gemma3@gemma-3-4b-it", True),
        (GARDEN["model"], "publishers/google/models/gemma3", True),
        (GARDEN["model"], "publishers/google/models/gemma3@gemma-3-27b-it", False),
        (GARDEN["model"], "publishers/google/models/gemma2@gemma-3-4b-it", False),
        (HUB["model"], "publishers/hf-qwen/models/qwen3-4b@001", True),
        (HUB["model"], "publishers/hf-Qwen/models/Qwen3-4B", True),
        (HUB["model"], "publishers/hf-qwen/models/qwen3-8b@001", False),
        (HUB["model"], "", True),
        (HUB["model"], "Qwen/Qwen3-8B", True),
    ],
)
def test_the_model_of_an_operation_is_compared_by_what_both_names_have(model, name, may_be):
    spec = parse_endpoint({**(GARDEN if "@" in model else HUB), "locations": PLACES})
    assert may_be_model(name, spec) is may_be


def test_a_lost_reply_covers_its_time_and_the_difference_of_the_clocks():
    lost = LostReply(100.0).joined(LostReply(50.0, 60.0))
    assert lost == LostReply(50.0)
    assert LostReply(1.0, 2.0).joined(LostReply(3.0, 4.0)) == LostReply(1.0, 4.0)
    assert lost.may_have_started(None)
    assert lost.may_have_started(1e9)
    assert lost.may_have_started(50.0 - CLOCK_SECONDS)
    assert not lost.may_have_started(49.0 - CLOCK_SECONDS)
    assert not LostReply(50.0, 60.0).may_have_started(61.0 + CLOCK_SECONDS)
