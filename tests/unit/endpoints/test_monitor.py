"""Provisioning with Google's clients on the sandbox: they behave as the fake of `test_moments.py`."""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import groupby

import pytest
from google.api_core.future.polling import DEFAULT_POLLING
from llmbeam_sandbox import EndpointSettings, Fault, ManualClock, Sandbox

from airflow_provider_llmbeam.endpoints import teardown
from airflow_provider_llmbeam.endpoints.monitor import EndpointMonitor, ProvisioningResult
from airflow_provider_llmbeam.endpoints.platform import platform_factory
from airflow_provider_llmbeam.endpoints.provisioning import ProvisioningHistory
from airflow_provider_llmbeam.endpoints.resource import LostReply
from airflow_provider_llmbeam.endpoints.sweep import Endpoints, sweep
from airflow_provider_llmbeam.endpoints.teardown import remove
from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook
from airflow_provider_llmbeam.polling.poller import poll_until_result
from airflow_provider_llmbeam.spec import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_labels
from airflow_provider_llmbeam.triggers.endpoint import EndpointTrigger
from tests.unit.endpoints.moments import (
    CLOUD_RUN,
    CONTAINER,
    GARDEN,
    KEY,
    KINDS,
    LIVES,
    LOCATIONS,
    garden_resources_of,
)

pytestmark = pytest.mark.promise(3)

SECONDS = 0.1
POLLING = DEFAULT_POLLING.with_delay(initial=0.05)
log = logging.getLogger(__name__)


@pytest.fixture
def clock():
    return time.time


@pytest.fixture
def garden_resources():
    return "at_once"


@pytest.fixture
def sandbox(clock, garden_resources):
    """A sandbox whose endpoints take time to come up."""
    settings = EndpointSettings(operation_seconds=SECONDS, garden_resources=garden_resources)
    with Sandbox(endpoints=settings, clock=clock) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(teardown, "ROUND_SECONDS", 0.1)


@pytest.fixture(params=[GARDEN, CONTAINER, CLOUD_RUN], ids=["garden", "container", "cloud_run"])
def kind(request):
    return request.param


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


class Requests:
    """A platform that notes what is requested of it, reads excepted, as the fake does."""

    def __init__(self, platform, made):
        self._platform, self._made = platform, made

    def __getattr__(self, name):
        method = getattr(self._platform, name)
        notes = {"create": "create {0}", "adopt": "adopt", "probe": "ask", "cancel": "cancel"}
        if name == "remove":
            return lambda one: self._note("undeploy" if one.deployed else f"delete {one.kind}", method, one)
        if name not in notes:
            return method
        return lambda *arguments: self._note(notes[name].format(arguments[0]), method, *arguments)

    def _note(self, what, method, *arguments):
        self._made.append(what)
        return method(*arguments)


def requests_of(life):
    """Returns what a life requests, each row of the same request once."""
    words = [word for _, expected in life.moments for word in expected.split(", ")]
    return [word for word, _ in groupby(word for word in words if word not in ("wait", "next location"))]


#: Lives, and the fault of the sandbox that stands for their event.
PLAYED = {
    "no failure": None,
    "no GPU is free in the first location": Fault(kind="stock-out"),
    "the machine is refused": Fault(kind="error", http_status=400, message="No such machine."),
    "the deployment fails half-way": Fault(kind="operation-error", http_status=500, message="It never came up."),
    "the reply to the request is lost": Fault(kind="error", http_status=503),
}
DEPLOY = dict.fromkeys(("garden", "garden_late"), "vertex.modelGarden.deploy")
DEPLOY |= {"container": "vertex.endpoints.deployModel", "cloud_run": "run.services.create"}


@pytest.mark.parametrize(
    ("life", "garden_resources"),
    [pytest.param(life, garden_resources_of(life.kind), id=str(life)) for life in LIVES if life.name in PLAYED],
)
@pytest.mark.parametrize("clock", [ManualClock(time.time())], ids=[""])
def test_googles_clients_on_the_sandbox_request_what_the_fake_is_asked_for(
    sandbox, clock, trigger, monkeypatch, life
):
    made, connect = [], platform_factory
    monkeypatch.setattr(
        "airflow_provider_llmbeam.triggers.endpoint.platform_factory",
        lambda *where: lambda location: Requests(connect(*where)(location), made),
    )
    if (fault := PLAYED[life.name]) is not None:
        sandbox.faults.queue(DEPLOY[life.kind], fault)
    monitor = trigger(KINDS[life.kind], locations=LOCATIONS).make_poller(log)
    ended = poll_until_result(monitor, sleep=lambda seconds: clock.advance(SECONDS / 3))
    found = [what for what, _ in groupby([*made, ended.outcome])]
    assert found == requests_of(life), ended.message
    assert is_empty(sandbox) == (ended.outcome != "ready")


def test_the_next_try_adopts_what_a_killed_one_left_and_the_killed_one_removes_nothing(sandbox, trigger, kind):
    first = trigger(kind, "1").make_poller(log)
    poll_times(first, 4)
    ended = poll_until_result(trigger(kind, "2").make_poller(log))
    assert ended.outcome == "ready", ended.message
    first.abandon("The task was cleared.", within_seconds=5.0)
    (left,) = [*sandbox.endpoints, *sandbox.services]
    assert left["labels"]["llmbeam-try"] == "2"
    assert len({line.name for line in (*sandbox.bill.lines, *sandbox.bill.running)}) == 1
    assert sandbox.bill.running or kind is CLOUD_RUN


def test_a_try_that_is_abandoned_during_a_create_request_removes_what_it_creates(sandbox, trigger, monkeypatch):
    monitor, create = trigger(GARDEN).make_poller(log), VertexAIHook.deploy_from_model_garden

    def killed_before(hook, fields):
        monitor.abandon("The task was killed.", within_seconds=30.0)  # as a signal handler does
        return create(hook, fields)

    monkeypatch.setattr(VertexAIHook, "deploy_from_model_garden", killed_before)
    assert poll_until_result(monitor).outcome == "failed"
    time.sleep(2 * SECONDS)
    assert is_empty(sandbox)


@pytest.mark.parametrize(("method", "status"), [("vertex.endpoints.patch", 409), ("vertex.operations.get", 404)])
def test_a_request_that_is_refused_once_does_not_give_up_a_gpu_that_boots(sandbox, trigger, method, status):
    sandbox.faults.queue(method, Fault(kind="error", http_status=status))
    assert poll_until_result(trigger(GARDEN).make_poller(log)).outcome == "ready"
    assert len(sandbox.bill.running) == 1
    assert sandbox.bill.lines == []


def test_a_teardown_removes_what_is_still_being_created(sandbox, trigger, kind):
    made = trigger(kind)
    poll_times(made.make_poller(log), 4)
    assert remove(platform_of(made, kind["type"]), KEY, within_seconds=30.0, log=log) is None
    time.sleep(2 * SECONDS)
    assert is_empty(sandbox)


@pytest.mark.full
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


@pytest.mark.full
def test_a_teardown_undeploys_the_gpu_without_the_right_to_see_models(sandbox, trigger):
    made = trigger(CONTAINER)
    poll_until_result(made.make_poller(log))
    for method in ("vertex.models.list", "vertex.models.get"):
        sandbox.faults.every(method, 1, Fault(kind="error", http_status=403))
    left = remove(platform_of(made), KEY, within_seconds=30.0, log=log)
    assert (sandbox.endpoints, sandbox.bill.running) == ([], [])
    assert left.startswith("Its model may be left, which costs nothing: ")


@pytest.mark.full
def test_a_sweep_removes_endpoints_where_no_models_can_be_listed_and_says_so(sandbox, trigger):
    made = trigger(CONTAINER)
    poll_until_result(made.make_poller(log))
    sandbox.faults.every("vertex.models.list", 1, Fault(kind="error", http_status=403))
    endpoints = Endpoints(
        platform=platform_of(made),
        deployments=["prod"],
        expired_before=time.time() + 120,
        gone_within_seconds=30.0,
        log=log,
    )
    manifest = sweep([endpoints], deployments=["prod"], dry_run=False, log=log)
    assert [name.split("/")[-2] for name in manifest.deleted] == ["endpoints"]
    assert ["list the models" in message for message in manifest.failed] == [True]
    assert is_empty(sandbox)


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
        (left,) = [*sandbox.endpoints, *sandbox.services]
        labels = {f"llmbeam-{name}" for name in ("key", "deployment", "expires", "dag", "run", "try")}
        assert set(left["labels"]) == labels
        assert all(model["labels"] == left["labels"] for model in sandbox.models)
        await in_state(made, "failed").on_kill()
        return ProvisioningResult.from_event(event)

    assert asyncio.run(run()).outcome == "ready"
    assert is_empty(sandbox)


def test_a_trigger_that_has_not_started_removes_the_endpoint_when_killed(sandbox, trigger, in_state):
    before = trigger(CONTAINER).make_poller(log)
    poll_times(before, 3)
    made = trigger(CONTAINER, history=before.provisioner.history.to_dict())
    asyncio.run(in_state(made, "failed").on_kill())
    assert is_empty(sandbox)


@pytest.mark.parametrize(
    ("state", "is_abandoned"),
    [
        ("failed", True),
        ("skipped", True),
        (None, True),
        *((state, False) for state in ("deferred", "scheduled", "queued", "running", "success")),
    ],
)
def test_a_trigger_that_is_killed_leaves_an_endpoint_that_its_task_awaits_or_has(
    trigger, in_state, monkeypatch, state, is_abandoned
):
    abandoned = []
    monkeypatch.setattr(EndpointMonitor, "abandon", lambda *arguments, **limits: abandoned.append(arguments))
    asyncio.run(in_state(trigger(GARDEN), state).on_kill())
    assert bool(abandoned) == is_abandoned


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


@pytest.mark.full
def test_a_registered_model_is_deployed_at_its_version_also_by_the_next_try(sandbox, trigger, registered):
    poll_times(trigger(registered(2), "1").make_poller(log), 6)
    ended = poll_until_result(trigger(registered(2), "2").make_poller(log))
    assert ended.outcome == "ready", ended.message
    assert ended.model["name"] == registered(2)["model"]
    (endpoint,) = sandbox.endpoints
    assert [one["modelVersionId"] for one in endpoint["deployedModels"]] == ["2"]
    assert len([*sandbox.bill.lines, *sandbox.bill.running]) == 1


@pytest.mark.full
def test_a_registered_model_outlives_its_endpoint(sandbox, trigger, registered):
    made = trigger(registered(1))
    poll_until_result(made.make_poller(log))
    assert remove(platform_of(made), KEY, within_seconds=30.0, log=log) is None
    assert (sandbox.endpoints, sandbox.bill.running, len(sandbox.models)) == ([], [], 1)


@pytest.mark.full
def test_a_try_for_another_version_replaces_the_endpoint_of_the_earlier_one(sandbox, trigger, registered):
    """E.g. a whole run is cleared after its alias has moved: no answer of one version may pass for the other's."""
    poll_times(trigger(registered(1), "1").make_poller(log), 12)
    ended = poll_until_result(trigger(registered(2), "2").make_poller(log))
    assert (ended.outcome, ended.model["name"]) == ("ready", registered(2)["model"])
    (endpoint,) = sandbox.endpoints
    assert [one["modelVersionId"] for one in endpoint["deployedModels"]] == ["2"]
    assert len(sandbox.bill.running) == 1


@pytest.mark.full
def test_a_version_that_does_not_exist_is_refused_before_anything_is_billed(sandbox, trigger, registered):
    ended = poll_until_result(trigger(registered(3)).make_poller(log))
    assert (ended.outcome, ended.error_type) == ("refused", "JobSpecError")
    assert ended.message.endswith("/models/support@3'. Nothing was sent or billed.")
    assert (sandbox.endpoints, sandbox.bill.lines) == ([], [])


# Services on Cloud Run without a permission


@pytest.mark.parametrize(
    "denied",
    [
        Fault(kind="operation-error", http_status=403, message="The image cannot be read."),
        Fault(
            kind="operation-error", http_status=500, message="Permission denied on secret: projects/p/secrets/hf."
        ),
    ],
    ids=["reason", "message"],
)
def test_a_service_that_lacks_a_permission_is_not_tried_again(sandbox, trigger, denied):
    sandbox.faults.queue("run.services.create", denied)
    ended = poll_until_result(trigger(CLOUD_RUN).make_poller(log))
    assert (ended.outcome, ended.error_type) == ("refused", "EndpointRefusedError")
    assert "'us-central1' (permission)" in ended.message or "us-central1 (permission)" in ended.message
    assert is_empty(sandbox)


@pytest.mark.parametrize("dedicated", [True, False])
def test_a_model_garden_endpoint_has_an_address_of_its_own_unless_it_is_turned_off(sandbox, trigger, dedicated):
    ended = poll_until_result(trigger({**GARDEN, "dedicated_dns": dedicated}).make_poller(log))
    assert ended.outcome == "ready", ended.message
    assert ended.model["base_url"].endswith(".prediction.vertexai.goog") is dedicated
