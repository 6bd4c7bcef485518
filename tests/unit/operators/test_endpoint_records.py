"""What a provision records of its requests, and what a retry and a teardown make of it, without a scheduler."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import DAG
from llmbeam_sandbox import EndpointSettings, Fault, Sandbox

from airflow_provider_llmbeam.endpoints import teardown
from airflow_provider_llmbeam.endpoints.monitor import EndpointMonitor
from airflow_provider_llmbeam.exceptions import EndpointFailedError, StockOutError
from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook
from airflow_provider_llmbeam.operators.endpoint import (
    ProvisionEndpointOperator,
    TeardownEndpointOperator,
    gpu_use,
)
from airflow_provider_llmbeam.polling.poller import poll_until_result

pytestmark = pytest.mark.slow

SECONDS = 0.3
GARDEN = {"type": "vertex", "model": "google/gemma3@gemma-3-4b-it", "accept_eula": True}
DEPLOY, CANCEL = "vertex.modelGarden.deploy", "vertex.operations.cancel"


class KilledError(BaseException):
    """The process ends here, before it reads a reply."""


class Run:
    """The tasks of one run, with their XComs.

    Args:
        name: Name of the endpoint.
        project: Project of the endpoint.
        locations: Regions of the endpoint.
    """

    def __init__(self, name: str, project: str, locations: tuple[str, ...] = ("us-central1",)) -> None:
        endpoint = {**GARDEN, "project": project, "locations": locations}
        with DAG(f"gpu_{name}", schedule=None):
            self.up = ProvisionEndpointOperator(
                task_id="up", endpoint=endpoint, name=name, poll_interval_seconds=0.05
            )
            self.down = TeardownEndpointOperator(
                task_id="down", endpoint=endpoint, name=name, gone_within_seconds=20.0
            )
            self.up >> self.down
        self.xcoms: dict[str, Any] = {}
        self.began = datetime.now(UTC)

    def context(self, try_number: int = 1) -> Any:
        ti = SimpleNamespace(
            dag_id="gpu",
            run_id="r",
            task_id="up",
            id=f"00000000000{try_number}",
            try_number=try_number,
            xcom_push=lambda key, value: self.xcoms.__setitem__(key, value),
            xcom_pull=lambda task_ids, key: [self.xcoms.get(key)],
        )
        return {"ti": ti, "dag_run": SimpleNamespace(run_after=self.began)}

    def start(self, try_number: int = 1) -> Any:
        """Runs the worker's part of a try; returns the trigger."""
        self.xcoms.clear()  # as Airflow does before each try
        with pytest.raises(TaskDeferred) as deferred:
            self.up.execute(self.context(try_number))
        return deferred.value.trigger

    def finish(self, trigger: Any, try_number: int = 1) -> dict[str, Any]:
        """Polls as the triggerer does, and resumes the task."""
        ended = poll_until_result(trigger.make_poller(self.up.log))
        return self.up.execute_complete(self.context(try_number), ended.to_event())

    def complete(self, try_number: int) -> dict[str, Any]:
        """Runs a whole try, which waits only if the deployment still goes on."""
        try:
            return self.up.execute(self.context(try_number))
        except TaskDeferred as deferred:
            return self.finish(deferred.trigger, try_number)

    def tear_down(self) -> None:
        self.down.execute(self.context())


@pytest.fixture(params=["at_once", "when_deployed"])
def sandbox(request):
    with Sandbox(endpoints=EndpointSettings(operation_seconds=SECONDS, garden_resources=request.param)) as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(teardown, "ROUND_SECONDS", 0.1)


@pytest.fixture
def run(sandbox, google):
    return Run("judge", google.project)


@pytest.fixture
def other(sandbox, google):
    """Another run, whose deployment goes on for an hour."""
    made = Run("other", google.project)
    sandbox.faults.when(DEPLOY, "llmbeam-other", Fault(kind="slow", after_seconds=3_600.0))
    made.start()
    return made


def kill(run, monkeypatch):
    """Runs a try whose worker is killed with `kill -9`: nothing is removed, and the reply is not read."""
    deploy = VertexAIHook.deploy_from_model_garden

    def without_reply(hook, fields):
        deploy(hook, fields)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(VertexAIHook, "deploy_from_model_garden", without_reply)
        patched.setattr(
            "airflow_provider_llmbeam.operators.endpoint.EndpointMonitor.abandon", lambda *_, **__: None
        )
        with pytest.raises(KilledError):
            run.up.execute(run.context())


def is_empty(sandbox):
    return not (sandbox.endpoints or sandbox.models or sandbox.bill.running)


def ends_empty(sandbox):
    """Waits until whatever was requested would have appeared, and then for the end of what is being deleted."""
    time.sleep(2 * SECONDS)
    deadline = time.monotonic() + 20
    while not is_empty(sandbox) and time.monotonic() < deadline:
        time.sleep(0.1)
    return is_empty(sandbox)


def gpus(sandbox):
    return len([*sandbox.bill.lines, *sandbox.bill.running])


def cancelled(sandbox):
    return sandbox.stats()["methods"][CANCEL]["calls"]


def test_a_retry_after_kill_9_deploys_no_second_gpu_and_its_teardown_leaves_nothing(sandbox, run, monkeypatch):
    kill(run, monkeypatch)
    model = run.complete(2)
    assert model["type"] == "vertex_endpoint"
    run.tear_down()
    assert is_empty(sandbox)
    assert gpus(sandbox) == 1


def test_a_teardown_after_kill_9_waits_and_leaves_nothing(sandbox, run, monkeypatch):
    kill(run, monkeypatch)
    run.tear_down()
    assert ends_empty(sandbox)
    assert (gpus(sandbox), cancelled(sandbox)) == (1, 0)


def test_a_teardown_after_a_retry_that_was_killed_before_it_recorded_anything_leaves_nothing(
    sandbox, run, monkeypatch
):
    kill(run, monkeypatch)
    run.xcoms.clear()
    run.tear_down()
    assert ends_empty(sandbox)


def test_a_teardown_cancels_the_recorded_operation_at_once(sandbox, run):
    sandbox.faults.hold(DEPLOY)
    run.start()
    run.tear_down()
    assert ends_empty(sandbox)
    assert cancelled(sandbox) >= 1


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_that_knows_its_requests_waits_for_no_other_run(sandbox, run, other, ends):
    trigger = run.start()
    if ends:
        run.finish(trigger)
    started = time.monotonic()
    run.tear_down()
    assert time.monotonic() - started < 10
    assert len(sandbox.bill.running) == 1, "that of the other run"


def test_a_provision_that_was_refused_waits_for_no_other_run(sandbox, run, other):
    sandbox.faults.when(DEPLOY, "llmbeam-judge", Fault(kind="quota"))
    trigger = run.start()
    with pytest.raises(StockOutError, match="nothing bills"):
        run.finish(trigger)
    run.tear_down()
    assert len(sandbox.bill.running) == 1


def test_an_abandoned_provision_settles_nothing(sandbox, run, monkeypatch):
    """A task that is killed while it polls in the worker: what it could not remove is left to the teardown."""
    run.up.deferrable = False
    deploy = VertexAIHook.deploy_from_model_garden

    def killed_meanwhile(hook, fields):
        run.up._monitor.abandon("The task was killed.", within_seconds=0.0)
        return deploy(hook, fields)

    monkeypatch.setattr(VertexAIHook, "deploy_from_model_garden", killed_meanwhile)
    with pytest.raises(EndpointFailedError, match="was abandoned"):
        run.up.execute(run.context())
    assert not any(key.startswith("settled_") for key in run.xcoms)
    run.tear_down()
    assert ends_empty(sandbox)
    assert gpus(sandbox) == 1


def test_a_teardown_after_kill_9_while_the_worker_polls_cancels_the_deployment_at_once(sandbox, run, monkeypatch):
    def killed(hook, name):
        raise KilledError

    sandbox.faults.when(DEPLOY, "llmbeam-judge", Fault(kind="slow", after_seconds=3_600.0))
    run.up.deferrable = False
    with monkeypatch.context() as patched:
        patched.setattr(VertexAIHook, "get_operation", killed)
        patched.setattr(EndpointMonitor, "abandon", lambda *_, **__: None)
        with pytest.raises(KilledError):
            run.up.execute(run.context())
    run.tear_down()
    assert is_empty(sandbox)
    assert gpus(sandbox) == 1


def test_the_use_of_gpus_is_that_of_all_removed_endpoints_and_has_no_price_if_one_is_unknown():
    assert gpu_use([], 0.0) == {}
    assert gpu_use([(1000.0, 3.0), (2800.0, 1.0)], 4600.0) == {"gpu_hours": 1.5, "gpu_usd": 3.5}
    assert gpu_use([(1000.0, 3.0), (2800.0, None)], 4600.0) == {"gpu_hours": 1.5, "gpu_usd": None}
