"""Provisioning on Vertex AI and Cloud Run with Google's clients on the sandbox, with tries that end early."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from google.api_core.future.polling import DEFAULT_POLLING

from airflow_provider_llmbeam.endpoints import teardown
from airflow_provider_llmbeam.endpoints.monitor import ProvisioningResult
from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.endpoints.platforms.factory import platform_factory
from airflow_provider_llmbeam.endpoints.provisioning import ProvisioningHistory
from airflow_provider_llmbeam.endpoints.resource import LostReply
from airflow_provider_llmbeam.endpoints.sweep import sweep
from airflow_provider_llmbeam.endpoints.teardown import remove
from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook
from airflow_provider_llmbeam.polling.poller import Wait, poll_until_result
from airflow_provider_llmbeam.sandbox import EndpointSettings, Fault, Sandbox
from airflow_provider_llmbeam.spec import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_labels
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.triggers.endpoint import EndpointTrigger

pytestmark = pytest.mark.slow

SECONDS = 0.1
GARDEN = {"type": "vertex", "model": "google/gemma3@gemma-3-4b-it", "accept_eula": True}
CONTAINER = {
    "type": "vertex",
    "model": "Qwen/Qwen3-4B",
    "container_image": "vllm/vllm-openai:v0.11.0",
    "machine_type": "g2-standard-12",
}
CLOUD_RUN = {"type": "cloud_run", "model": "Qwen/Qwen3-4B"}
KINDS = {"garden": GARDEN, "container": CONTAINER, "cloud_run": CLOUD_RUN}
KEY = identity("gpu-0123456789ab")
POLLING = DEFAULT_POLLING.with_delay(initial=0.05)
log = logging.getLogger(__name__)


@pytest.fixture
def sandbox():
    """A sandbox whose endpoints take time to come up."""
    with Sandbox(endpoints=EndpointSettings(operation_seconds=SECONDS)) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(teardown, "ROUND_SECONDS", 0.1)


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def trigger(google):
    """Returns a function that makes the trigger of one try."""

    def make(kind, attempt="1", locations=("us-central1",), **arguments):
        spec = parse_endpoint({**kind, "project": google.project, "locations": locations})
        now = time.time()
        # As `ProvisionEndpointOperator` does: what the tries before have started is not known.
        history = ProvisioningHistory(now, lost=None if attempt == "1" else LostReply(now - 60, now))
        labels = endpoint_labels(
            KEY, deployment="prod", expires_at=now + 60, dag_id="d", run_id="r", attempt=attempt
        )
        return EndpointTrigger(
            endpoint=spec.model_dump(mode="json"),
            key=KEY,
            labels=labels,
            history=arguments.pop("history", history.to_dict()),
            poll_interval_seconds=0.02,
            ready_within_seconds=arguments.pop("ready_within_seconds", 60.0),
            **arguments,
        )

    return make


def platform_of(trigger, kind="vertex"):
    return platform_factory(kind, trigger.endpoint["project"], "google_cloud_default", None)("us-central1")


def poll_times(monitor, times):
    """Polls as often as a try that was then killed."""
    for _ in range(times):
        result = monitor.poll()
        if isinstance(result, ProvisioningResult):
            return
        time.sleep(result.seconds)


def is_empty(sandbox):
    return not (sandbox.endpoints or sandbox.models or sandbox.services or sandbox.bill.running)


@pytest.mark.parametrize("polls", range(0, 24, 3))
def test_a_try_resumes_wherever_the_one_before_was_killed(sandbox, trigger, kind, polls):
    poll_times(trigger(kind, "1").make_poller(log), polls)
    ended = poll_until_result(trigger(kind, "2").make_poller(log))
    assert ended.outcome == "ready", ended.message
    (left,) = [*sandbox.endpoints, *sandbox.services]
    assert left["labels"]["llmbeam-try"] == "2"
    made = [line.name for line in (*sandbox.bill.lines, *sandbox.bill.running)]
    assert len(set(made)) == 1
    if kind["type"] == "vertex":
        assert len(made) == 1, "a GPU was paid for twice"


@pytest.mark.parametrize("polls", range(1, 24, 4))
def test_an_abandoned_try_removes_all_its_resources(sandbox, trigger, kind, polls, caplog):
    monitor = trigger(kind).make_poller(log)
    poll_times(monitor, polls)
    monitor.abandon("The task was killed.", within_seconds=30.0)
    assert is_empty(sandbox)
    assert "The task was killed. Its resources were deleted: nothing bills." in caplog.text


def test_a_try_that_is_abandoned_during_a_create_request_removes_what_it_creates(sandbox, trigger, monkeypatch):
    monitor, create = trigger(GARDEN).make_poller(log), VertexAIHook.deploy_from_model_garden

    def killed_before(hook, fields):
        monitor.abandon("The task was killed.", within_seconds=30.0)  # as a signal handler does
        return create(hook, fields)

    monkeypatch.setattr(VertexAIHook, "deploy_from_model_garden", killed_before)
    assert poll_until_result(monitor).outcome == "failed"
    time.sleep(2 * SECONDS)
    assert is_empty(sandbox)


@pytest.mark.parametrize("method", ["vertex.endpoints.patch", "vertex.models.patch", "vertex.operations.get"])
@pytest.mark.parametrize("status", [400, 404, 409])
def test_a_request_that_is_refused_once_does_not_give_up_a_gpu_that_boots(sandbox, trigger, method, status):
    sandbox.faults.queue(method, Fault(kind="error", http_status=status))
    assert poll_until_result(trigger(GARDEN).make_poller(log)).outcome == "ready"
    assert len(sandbox.bill.running) == 1
    assert sandbox.bill.lines == []


def test_a_poll_that_fails_in_an_unexpected_way_is_repeated_and_the_gpu_boots_on(sandbox, trigger, monkeypatch):
    monitor, poll, polls = trigger(GARDEN).make_poller(log), VertexAIHook.get_endpoint, iter(range(1_000))

    def failing(hook, endpoint_id):
        if next(polls) == 3:
            raise KeyError("state")
        return poll(hook, endpoint_id)

    monkeypatch.setattr(VertexAIHook, "get_endpoint", failing)
    assert poll_until_result(monitor).outcome == "ready"
    assert len(sandbox.bill.running) == 1
    assert sandbox.bill.lines == []


@pytest.mark.parametrize("polls", [1, 4, 9])
def test_a_teardown_removes_what_is_still_being_created(sandbox, trigger, kind, polls):
    made = trigger(kind)
    poll_times(made.make_poller(log), polls)
    assert remove(platform_of(made, kind["type"]), KEY, within_seconds=30.0, log=log) is None
    time.sleep(2 * SECONDS)
    assert is_empty(sandbox)


def test_an_abandoned_try_keeps_what_a_later_one_took_over(sandbox, trigger, kind):
    first = trigger(kind, "1").make_poller(log)
    poll_until_result(first)
    second = trigger(kind, "2").make_poller(log)
    poll_until_result(second)
    first.abandon("The task was cleared.", within_seconds=5.0)
    assert [*sandbox.endpoints, *sandbox.services]
    assert sandbox.bill.running or kind is CLOUD_RUN
    assert first.poll().outcome == "failed"


def test_an_abandoned_try_removes_what_it_took_over_although_the_model_has_the_label_of_the_earlier_try(
    sandbox, trigger
):
    poll_until_result(trigger(CONTAINER, "1").make_poller(log))
    sandbox.faults.queue("vertex.models.patch", Fault(kind="error", http_status=403))
    second = trigger(CONTAINER, "2").make_poller(log)
    assert poll_until_result(second).outcome == "ready"
    made = [one["labels"]["llmbeam-try"] for one in (*sandbox.endpoints, *sandbox.models)]
    assert made == ["2", "1"]
    second.abandon("The task was killed.", within_seconds=30.0)
    assert is_empty(sandbox)


def test_an_abandoned_try_reports_what_is_still_billing(sandbox, trigger, caplog):
    monitor = trigger(GARDEN).make_poller(log)
    poll_until_result(monitor)
    sandbox.faults.queue("vertex.endpoints.undeployModel", *[Fault(kind="error", http_status=400)] * 20)
    monitor.abandon("The task was killed.", within_seconds=0.0)
    assert "is still billing, about $1.15 an hour" in caplog.text
    assert "gcloud ai endpoints undeploy-model" in caplog.text


def test_a_teardown_undeploys_the_gpu_without_the_right_to_see_models(sandbox, trigger):
    made = trigger(CONTAINER)
    poll_until_result(made.make_poller(log))
    for method in ("vertex.models.list", "vertex.models.get"):
        sandbox.faults.every(method, 1, Fault(kind="error", http_status=403))
    left = remove(platform_of(made), KEY, within_seconds=30.0, log=log)
    assert (sandbox.endpoints, sandbox.bill.running) == ([], [])
    assert left.startswith("Its model may be left, which costs nothing: ")


def test_a_teardown_needs_no_right_to_list_models(sandbox, trigger):
    made = trigger(CONTAINER)
    poll_until_result(made.make_poller(log))
    sandbox.faults.every("vertex.models.list", 1, Fault(kind="error", http_status=403))
    assert remove(platform_of(made), KEY, within_seconds=30.0, log=log) is None
    assert is_empty(sandbox)


def test_a_sweep_removes_endpoints_where_no_models_can_be_listed_and_says_so(sandbox, trigger):
    made = trigger(CONTAINER)
    poll_until_result(made.make_poller(log))
    sandbox.faults.every("vertex.models.list", 1, Fault(kind="error", http_status=403))
    settings = {"dry_run": False, "older_than_seconds": 0.0, "max_job_age_seconds": None, "log": log}
    now, deployments = time.time() + 120, {"prod"}
    manifest = sweep(
        [platform_of(made)], [], deployments=deployments, now=now, gone_within_seconds=30.0, **settings
    )
    assert [name.split("/")[-2] for name in manifest.deleted] == ["endpoints"]
    assert ["list the models" in message for message in manifest.failed] == [True]
    assert is_empty(sandbox)


def test_an_endpoint_that_exceeds_its_time_limit_is_removed(sandbox, trigger, kind):
    for method in ("vertex.modelGarden.deploy", "vertex.endpoints.deployModel", "run.services.create"):
        sandbox.faults.queue(method, Fault(kind="slow", after_seconds=3_600.0))
    ended = poll_until_result(trigger(kind, ready_within_seconds=SECONDS / 2).make_poller(log))
    assert ended.outcome == "failed"
    assert "(`ready_within_seconds`)" in ended.message
    assert is_empty(sandbox)


def test_another_triggerer_goes_on_in_the_location_to_which_the_first_one_had_moved(sandbox, trigger):
    locations = ("us-central1", "europe-west4", "us-east4")
    sandbox.faults.queue("vertex.endpoints.deployModel", *[Fault(kind="stock-out")] * 2)
    worker = trigger(CONTAINER, locations=locations)
    monitor = worker.make_poller(log)
    monitor.poll()
    history = monitor.provisioner.history.to_dict()
    first = trigger(CONTAINER, locations=locations, history=history).make_poller(log)
    while first.provisioner.location != "us-east4" or not sandbox.bill.running:
        poll_times(first, 1)
    second = trigger(CONTAINER, locations=locations, history=history).make_poller(log)
    ended = poll_until_result(second)
    assert (ended.outcome, ended.location) == ("ready", "us-east4")
    assert len(sandbox.bill.running) == 1


def test_a_deployment_whose_reply_was_lost_is_found(sandbox, trigger, kind):
    create = {"vertex": "vertex.modelGarden.deploy", "cloud_run": "run.services.create"}[kind["type"]]
    create = "vertex.endpoints.create" if kind is CONTAINER else create
    sandbox.faults.queue(create, Fault(kind="error", http_status=503))
    assert poll_until_result(trigger(kind).make_poller(log)).outcome == "ready"


def test_a_trigger_survives_serialisation(trigger):
    made = trigger(GARDEN, impersonation_chain=("a@x.iam", "b@x.iam"))
    arguments = made.serialize()[1]
    assert EndpointTrigger(**arguments).serialize()[1] == arguments
    assert arguments["impersonation_chain"] == ["a@x.iam", "b@x.iam"]


def test_a_trigger_fires_once_and_removes_the_endpoint_when_killed(sandbox, trigger, in_state, monkeypatch, kind):
    monkeypatch.setattr("airflow_provider_llmbeam.triggers.base.PollingTrigger.first_poll_delay_seconds", 0.0)

    async def run():
        made = trigger(kind)
        (event,) = [event.payload async for event in made.run()]
        await made.cleanup()
        assert [*sandbox.endpoints, *sandbox.services], "a triggerer that stops leaves the endpoint alone"
        await in_state(made, "failed").on_kill()
        return ProvisioningResult.from_event(event)

    assert asyncio.run(run()).outcome == "ready"
    assert is_empty(sandbox)


@pytest.mark.parametrize("state", ["failed", "skipped", None])
def test_a_trigger_that_has_not_started_removes_the_endpoint_when_killed(sandbox, trigger, in_state, state):
    before = trigger(CONTAINER).make_poller(log)
    poll_times(before, 3)
    made = trigger(CONTAINER, history=before.provisioner.history.to_dict())
    asyncio.run(in_state(made, state).on_kill())
    assert is_empty(sandbox)


@pytest.mark.parametrize("state", ["deferred", "scheduled", "queued", "running", "success"])
def test_a_trigger_that_another_triggerer_has_taken_over_leaves_the_endpoint(sandbox, trigger, in_state, state):
    before = trigger(CONTAINER)
    assert poll_until_result(before.make_poller(log)).outcome == "ready"
    asyncio.run(in_state(before, state).on_kill())
    assert len(sandbox.bill.running) == 1


def test_resources_carry_labels_of_owner_and_expiry(sandbox, trigger, kind):
    poll_until_result(trigger(kind).make_poller(log))
    (made,) = [*sandbox.endpoints, *sandbox.services]
    assert set(made["labels"]) == {
        f"llmbeam-{name}" for name in ("key", "deployment", "expires", "dag", "run", "try")
    }
    for model in sandbox.models:
        assert model["labels"] == made["labels"]


def test_an_abandoned_try_creates_nothing_more(sandbox, trigger, kind):
    monitor = trigger(kind).make_poller(log)
    monitor.poll()
    monitor.abandon("The task was killed.", within_seconds=30.0)
    assert monitor.poll().message.endswith("was abandoned.")
    assert is_empty(sandbox)


def test_the_first_poll_finds_nothing_and_names_the_missing_service(trigger):
    made = trigger(CLOUD_RUN)
    spec = parse_endpoint(made.endpoint)
    platform = platform_of(made, "cloud_run")
    result = platform.poll(EndpointPlan(spec, KEY, made.labels), None)
    assert (result.is_empty, result.missing) == (True, "service")
    assert isinstance(made.make_poller(log).poll(), Wait)


# A registered model


@pytest.fixture
def registered(google):
    """Returns a function that describes an endpoint for a version of a model that has two."""
    hook = VertexAIHook("us-central1", google.project)
    model = {"display_name": "support", "container_spec": {"image_uri": "vllm", "args": ["--model=Qwen/Qwen3-4B"]}}
    name = f"{hook.parent}/models/support"
    for request in ({"model_id": "support"}, {"parent_model": name}):
        request |= {"parent": hook.parent, "model": model}
        hook._client("ModelServiceClient").upload_model(request).result(polling=POLLING)

    def endpoint(version):
        return {"type": "vertex", "model": f"{name}@{version}", "machine_type": "g2-standard-12"}

    return endpoint


@pytest.mark.parametrize("polls", [2, 6])
def test_a_registered_model_is_deployed_at_its_version_wherever_the_try_before_was_killed(
    sandbox, trigger, registered, polls
):
    poll_times(trigger(registered(2), "1").make_poller(log), polls)
    ended = poll_until_result(trigger(registered(2), "2").make_poller(log))
    assert ended.outcome == "ready", ended.message
    assert ended.model["name"] == registered(2)["model"]
    (endpoint,) = sandbox.endpoints
    assert [one["modelVersionId"] for one in endpoint["deployedModels"]] == ["2"]
    assert len([*sandbox.bill.lines, *sandbox.bill.running]) == 1


def test_a_registered_model_outlives_its_endpoint(sandbox, trigger, registered):
    made = trigger(registered(1))
    poll_until_result(made.make_poller(log))
    assert remove(platform_of(made), KEY, within_seconds=30.0, log=log) is None
    assert (sandbox.endpoints, sandbox.bill.running, len(sandbox.models)) == ([], [], 1)


@pytest.mark.parametrize("polls", [3, 12])
def test_a_try_for_another_version_replaces_the_endpoint_of_the_earlier_one(sandbox, trigger, registered, polls):
    """E.g. a whole run is cleared after its alias has moved: no answer of one version may pass for the other's."""
    poll_times(trigger(registered(1), "1").make_poller(log), polls)
    ended = poll_until_result(trigger(registered(2), "2").make_poller(log))
    assert (ended.outcome, ended.model["name"]) == ("ready", registered(2)["model"])
    (endpoint,) = sandbox.endpoints
    assert [one["modelVersionId"] for one in endpoint["deployedModels"]] == ["2"]
    assert len(sandbox.bill.running) == 1


def test_a_version_that_does_not_exist_is_refused_before_anything_is_billed(sandbox, trigger, registered):
    ended = poll_until_result(trigger(registered(3)).make_poller(log))
    assert (ended.outcome, ended.error_type) == ("refused", "JobSpecError")
    assert ended.message.endswith("/models/support@3'. Nothing was started or billed.")
    assert (sandbox.endpoints, sandbox.bill.lines) == ([], [])


@pytest.mark.parametrize("dedicated", [True, False])
def test_a_model_garden_endpoint_has_an_address_of_its_own_unless_it_is_turned_off(sandbox, trigger, dedicated):
    ended = poll_until_result(trigger({**GARDEN, "dedicated_dns": dedicated}).make_poller(log))
    assert ended.outcome == "ready", ended.message
    assert ended.model["base_url"].endswith(".prediction.vertexai.goog") is dedicated
