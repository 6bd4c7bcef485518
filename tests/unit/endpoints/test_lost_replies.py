"""Deployments from Model Garden whose operation has no known name, as Google's clients read them from the sandbox.

Documented of an unfinished operation are only its model and its time. Nobody knows when endpoint and model exist,
so each test is run with both: at once, and only when the deployment has ended. `test_moments.py` has every moment.
"""

from __future__ import annotations

import logging
import time

import pytest
from llmbeam_sandbox import EndpointSettings, Fault, Sandbox

from airflow_provider_llmbeam.endpoints import teardown
from airflow_provider_llmbeam.endpoints.platform import SentRequests, platform_factory
from airflow_provider_llmbeam.endpoints.provisioning import ProvisioningHistory
from airflow_provider_llmbeam.endpoints.resource import LostReply
from airflow_provider_llmbeam.endpoints.teardown import remove
from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook
from airflow_provider_llmbeam.polling.poller import poll_until_result
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


@pytest.fixture
def trigger(google):
    """Returns a function that makes the trigger of one try of a run."""

    def make(attempt="1", key=KEY, kind=GARDEN, lost=None):
        spec = parse_endpoint({**kind, "project": google.project, "locations": ("us-central1",)})
        now = time.time()
        labels = endpoint_labels(
            key, deployment="prod", expires_at=now + 60, dag_id="d", run_id="r", attempt=attempt
        )
        if attempt != "1" and lost is None:
            lost = LostReply(now - 10, now)
        return EndpointTrigger(
            endpoint=spec.model_dump(mode="json"),
            key=key,
            labels=labels,
            history=ProvisioningHistory(now, lost=lost).to_dict(),
            poll_interval_seconds=0.02,
            ready_within_seconds=60.0,
        )

    return make


@pytest.fixture
def killed(monkeypatch):
    """Returns a function that polls until the process is killed: before it reads the reply to its request."""
    deploy = VertexAIHook.deploy_from_model_garden

    def run(made):
        def without_reply(hook, fields):
            deploy(hook, fields)
            raise KilledError

        with monkeypatch.context() as patched:
            patched.setattr(VertexAIHook, "deploy_from_model_garden", without_reply)
            with pytest.raises(KilledError):
                poll_until_result(made.make_poller(log))

    return run


def gpus(sandbox):
    """Number of GPUs that were billed, whether they still are or not."""
    return len([*sandbox.bill.lines, *sandbox.bill.running])


def calls(sandbox, method):
    return sandbox.stats()["methods"].get(method, {}).get("calls", 0)


@pytest.mark.parametrize("kind", [GARDEN, HUB], ids=["garden", "hub"])
def test_a_retry_takes_over_what_a_killed_try_requested(sandbox, trigger, killed, kind):
    killed(trigger("1", kind=kind))
    ended = poll_until_result(trigger("2", kind=kind).make_poller(log))
    assert ended.outcome == "ready", ended.message
    assert (gpus(sandbox), calls(sandbox, DEPLOY)) == (1, 1)
    (endpoint,) = sandbox.endpoints
    assert endpoint["labels"]["llmbeam-try"] == "2"


def test_a_teardown_waits_for_what_a_killed_try_requested_and_removes_it(sandbox, trigger, killed, monkeypatch):
    monkeypatch.setattr(teardown, "ROUND_SECONDS", 0.1)
    since, made = time.time(), trigger("1")
    killed(made)
    platform = platform_factory("vertex", made.endpoint["project"], "google_cloud_default", None)("us-central1")
    sent = SentRequests(parse_endpoint(made.endpoint), lost=LostReply(since, time.time()))
    assert remove(platform, KEY, within_seconds=30.0, log=log, sent=sent) is None
    time.sleep(2 * SECONDS)
    assert (sandbox.endpoints, sandbox.models, sandbox.bill.running) == ([], [], [])
    assert (gpus(sandbox), calls(sandbox, CANCEL)) == (1, 0)


def test_a_teardown_waits_for_no_deployment_of_another_run_if_its_own_was_cancelled(sandbox, trigger, monkeypatch):
    """As after `on_kill` of a trigger, which has removed all before the teardown looks."""
    monkeypatch.setattr(teardown, "ROUND_SECONDS", 0.1)
    since, made = time.time(), trigger("1")
    for key in (KEY, OTHER):
        sandbox.faults.when(DEPLOY, endpoint_id(key), Fault(kind="slow", after_seconds=3_600.0))
    monitor = made.make_poller(log)
    monitor.poll()
    trigger(key=OTHER).make_poller(log).poll()
    assert monitor.abandon("The task was marked while deferred.", within_seconds=30.0)
    platform = platform_factory("vertex", made.endpoint["project"], "google_cloud_default", None)("us-central1")
    operation = monitor.provisioner.history.operation
    sent = SentRequests(parse_endpoint(made.endpoint), operation, LostReply(since, time.time()))
    assert remove(platform, KEY, within_seconds=0.0, log=log, sent=sent) is None


@pytest.mark.parametrize("fault", [Fault(kind="disconnect"), Fault(kind="error", http_status=503)])
def test_a_try_whose_request_got_no_reply_requests_no_second_gpu(sandbox, trigger, fault):
    sandbox.faults.queue(DEPLOY, fault)
    ended = poll_until_result(trigger().make_poller(log))
    assert (ended.outcome, gpus(sandbox)) == ("ready", 1), ended.message


def test_operations_of_another_time_or_of_another_model_are_not_waited_for(sandbox, trigger):
    sandbox.faults.when(DEPLOY, endpoint_id(OTHER), Fault(kind="slow", after_seconds=3_600.0))
    trigger(key=OTHER).make_poller(log).poll()
    earlier = time.time() - 1_000
    another_time = trigger("2", lost=LostReply(earlier, earlier + 1))
    another_model = trigger("2", key=identity("x-0123456789cd"), kind=HUB)
    for made in (another_time, another_model):
        assert poll_until_result(made.make_poller(log)).outcome == "ready"
