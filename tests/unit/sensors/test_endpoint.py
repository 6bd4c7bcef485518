from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG
from airflow.sdk.bases.sensor import AirflowRescheduleException
from llmbeam_sandbox import Fault, Latency, ModelSettings, Sandbox

from airflow_provider_llmbeam.endpoints.readiness import describe_model, judge_reply
from airflow_provider_llmbeam.exceptions import EndpointRefusedError, JobSpecError
from airflow_provider_llmbeam.hooks.probe import ProbeReply
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import SensorResult
from airflow_provider_llmbeam.sensors.base import GRACE_SECONDS
from airflow_provider_llmbeam.sensors.endpoint import EndpointReadySensor
from airflow_provider_llmbeam.spec import GeminiModel
from airflow_provider_llmbeam.spec.model import parse_model
from airflow_provider_llmbeam.triggers.airflow_compat import TaskDeferralError, TaskDeferralTimeout
from airflow_provider_llmbeam.triggers.base import PollingTrigger
from airflow_provider_llmbeam.triggers.sensor import EndpointReadyTrigger

GENERATE = "gemini.generateContent"
BUSY = Fault(kind="error", http_status=503)
#: Rounding of the times in the result, in seconds.
ROUNDING_SECONDS = 0.001
MODES = {
    "deferrable": {},
    "poke": {"deferrable": False},
    "reschedule": {"deferrable": False, "mode": "reschedule"},
}


class Task:
    """Fake of a task instance with the methods that a sensor uses."""

    def __init__(self, first=None):
        self.first, self.pushed = first, {}

    def get_first_reschedule_date(self, context):
        return self.first

    def xcom_push(self, key, value):
        self.pushed[key] = value


@pytest.fixture
def sensor(sandbox):
    """Returns a function that makes a sensor for the model of the sandbox."""

    def make(**given):
        model = {"type": "gemini", "base_url": sandbox.gemini_url, **given.pop("model", {})}
        return EndpointReadySensor(**{"task_id": "ready", "model": model, "poke_interval": 0.05, **given})

    return make


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def executed(made, task=None, **context):
    return made.execute({"ti": task or Task(), **context})


def test_a_model_that_answers_needs_no_wait_in_any_mode(sensor, mode):
    made, began = sensor(**mode), time.monotonic()
    value = executed(made)
    seconds = time.monotonic() - began + ROUNDING_SECONDS
    assert value["model"] == made.model
    assert value["polls"] == 1
    assert 0 < value["latency_seconds"] <= seconds
    assert 0 <= value["waited_seconds"] <= seconds
    json.dumps(value)


def test_a_model_that_does_not_answer_yet_frees_the_worker_slot(sandbox, sensor):
    sandbox.faults.queue(GENERATE, BUSY)
    made = sensor(timeout=3600, poke_interval=30, exponential_backoff=True, max_wait=300)
    with pytest.raises(TaskDeferred) as deferred:
        executed(made)
    trigger, asked = deferred.value.trigger, deferred.value.trigger.schedule
    assert isinstance(trigger, EndpointReadyTrigger)
    assert deferred.value.timeout == timedelta(seconds=3600 + GRACE_SECONDS)
    assert (asked["polls"], asked["timeout_seconds"], asked["is_exponential"]) == (1, 3600, True)
    assert (asked["poll_interval_seconds"], asked["max_wait_seconds"]) == (30, 300)
    assert os.environ["GOOGLE_API_KEY"] not in json.dumps(trigger.serialize())


def test_an_execution_timeout_holds_while_deferred(sandbox, sensor):
    sandbox.faults.queue(GENERATE, BUSY)
    with pytest.raises(TaskDeferred) as deferred:
        executed(sensor(timeout=3600, execution_timeout=timedelta(seconds=60)))
    assert deferred.value.timeout == timedelta(seconds=60)


def test_the_trigger_continues_polling_and_the_task_resumes_with_its_result(sandbox, sensor, monkeypatch):
    monkeypatch.setattr(PollingTrigger, "first_poll_delay_seconds", 0.0)
    sandbox.faults.queue(GENERATE, BUSY, BUSY)
    made = sensor()
    with pytest.raises(TaskDeferred) as deferred:
        executed(made)
    path, arguments = deferred.value.trigger.serialize()
    name, _, attribute = path.rpartition(".")
    trigger = getattr(importlib.import_module(name), attribute)(**json.loads(json.dumps(arguments)))
    assert trigger.serialize() == (path, arguments)

    async def events():
        return [event.payload async for event in trigger.run()]

    (event,) = asyncio.run(events())
    value = made.execute_complete({"ti": Task()}, json.loads(json.dumps(event)))
    assert value["polls"] == 3
    assert value["waited_seconds"] >= 1.0


def test_the_first_poll_of_a_trigger_is_neither_too_early_for_airflow_nor_after_the_timeout(sensor):
    made = sensor(poke_interval=60, timeout=3600)
    assert made.trigger(made._schedule(datetime.now(UTC).timestamp(), 3600.0))._delay_seconds == 60.0
    began = time.time()
    late = made.trigger(made._schedule(began, 30.0))
    assert 30.0 - (time.time() - began) - ROUNDING_SECONDS <= late._delay_seconds <= 30.0
    over = made.trigger(made._schedule(0.0, 30.0))
    assert over._delay_seconds == 10.0


def test_a_trigger_keeps_an_impersonation_chain_of_several_accounts():
    chain = ("a@x.iam", "b@x.iam")
    sensor = EndpointReadySensor(task_id="t", model={"type": "echo"}, impersonation_chain=chain)
    trigger = sensor.trigger(sensor._schedule(1.0, 2.0))
    assert trigger.serialize()[1]["arguments"]["impersonation_chain"] == ["a@x.iam", "b@x.iam"]


def timed_out():
    words = "Polled 5 times within 100 s (`timeout`). Model 'g' does not answer yet: HTTP 503: Loading."
    return SensorResult(outcome="timed_out", message=words, polls=5, waited_seconds=100.0).to_event()


def refused():
    return SensorResult(
        outcome="refused", message="Wrong key.", polls=1, waited_seconds=0.0, error_type="EndpointRefusedError"
    ).to_event()


def test_a_timeout_fails_with_the_last_refusal_or_skips(sensor):
    with pytest.raises(AirflowSensorTimeout, match=r"HTTP 503: Loading\. The sensor provisioned nothing"):
        sensor().execute_complete({"ti": Task()}, timed_out())
    for quiet in ("soft_fail", "never_fail"):
        with pytest.raises(AirflowSkipException, match=rf"`{quiet}=True`: .*HTTP 503: Loading"):
            sensor(**{quiet: True}).resume_execution("execute_complete", {"event": timed_out()}, {"ti": Task()})


def test_a_refusal_that_waiting_will_not_resolve_is_not_skipped(sensor):
    for soft_fail in (False, True):
        with pytest.raises(AirflowFailException, match=r"Wrong key\. The sensor provisioned nothing"):
            sensor(soft_fail=soft_fail).resume_execution("execute_complete", {"event": refused()}, {"ti": Task()})
    with pytest.raises(AirflowSkipException, match="`never_fail=True`: Wrong key"):
        sensor(never_fail=True).resume_execution("execute_complete", {"event": refused()}, {"ti": Task()})


@pytest.mark.parametrize("quiet", [{}, {"soft_fail": True}, {"silent_fail": True}])
def test_a_wrong_key_fails_at_once_in_every_mode(sensor, mode, quiet, monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "invalid")
    with pytest.raises(AirflowFailException, match="HTTP 400: API key not valid"):
        executed(sensor(**mode, **quiet))


def test_a_missing_model_fails_at_once(sensor):
    with pytest.raises(AirflowFailException, match=r"'claude' at http.*HTTP 404"):
        executed(sensor(model={"name": "claude"}))


def test_a_missing_connection_fails_at_once(sensor):
    with pytest.raises(AirflowFailException, match="there is no connection 'mine'"):
        executed(sensor(llmbeam_conn_id="mine"))


def test_a_rendered_value_that_is_not_a_model_fails_at_once(sensor):
    made = sensor()
    made.model = "None"
    with pytest.raises(AirflowFailException, match="`model`: "):
        executed(made)


def test_a_model_that_airflow_rendered_as_text_is_read(sensor):
    made = sensor()
    made.model = str(made.model)
    task = Task()
    assert executed(made, task)["model"]["type"] == made.model["type"]


@pytest.mark.parametrize("reason", ["soft_fail", "timeout"])
def test_a_trigger_that_reports_nothing_counts_as_a_timeout(sensor, reason):
    made = sensor(soft_fail=reason == "soft_fail", timeout=60)
    wanted = AirflowSkipException if made.soft_fail else AirflowSensorTimeout
    with pytest.raises(wanted, match=r"reported nothing within 360 s .*that a triggerer is running"):
        made.resume_execution("__fail__", {"error": "Trigger timeout"}, {"ti": Task()})


def test_a_failed_trigger_is_an_error_and_not_skipped(sensor):
    with pytest.raises(TaskDeferralError) as broken:
        sensor(soft_fail=True).resume_execution("__fail__", {"error": "Trigger failure"}, {"ti": Task()})
    assert not isinstance(broken.value, TaskDeferralTimeout)
    with pytest.raises(AirflowSkipException, match="`never_fail=True`"):
        sensor(never_fail=True).resume_execution("__fail__", {"error": "Trigger failure"}, {"ti": Task()})


def test_poke_mode_waits_in_the_worker(sandbox, sensor):
    sandbox.faults.queue(GENERATE, BUSY, BUSY)
    began = time.monotonic()
    value = executed(sensor(deferrable=False))
    assert value["polls"] == 3
    assert 0.1 <= value["waited_seconds"] <= time.monotonic() - began + ROUNDING_SECONDS


@pytest.mark.parametrize("soft_fail", [False, True])
def test_poke_mode_reports_the_last_reply_at_the_timeout(sandbox, sensor, soft_fail):
    sandbox.faults.every(GENERATE, 1, BUSY)
    wanted = AirflowSkipException if soft_fail else AirflowSensorTimeout
    with pytest.raises(wanted, match=r"timed out.*HTTP 503: The model is overloaded.*provisioned nothing"):
        executed(sensor(deferrable=False, timeout=0, soft_fail=soft_fail))


def test_reschedule_mode_counts_from_the_first_poke(sandbox, sensor):
    sandbox.faults.queue(GENERATE, BUSY)
    made = sensor(**MODES["reschedule"], poke_interval=60)
    with pytest.raises(AirflowRescheduleException):
        executed(made)
    began = datetime.now(UTC) - timedelta(seconds=60)
    value = executed(made, Task(began), task_reschedule_count=1)
    assert value["polls"] == 2
    assert 60 <= value["waited_seconds"] <= (datetime.now(UTC) - began).total_seconds() + ROUNDING_SECONDS


def test_a_slow_answer_is_not_ready_yet_and_its_latency_is_reported():
    with Sandbox(models=ModelSettings(latency=Latency(mean_seconds=0.3))) as slow:
        made = EndpointReadySensor(
            task_id="ready",
            model=GeminiModel(base_url=slow.gemini_url),
            max_latency_seconds=0.1,
            timeout=0,
            deferrable=False,
        )
        with pytest.raises(
            AirflowSensorTimeout, match=r"answer took 0\.\d s, and `max_latency_seconds` allows 0\.1 s"
        ):
            executed(made)


def test_the_page_of_the_endpoint_is_linked():
    endpoint = "projects/p/locations/us-central1/endpoints/7"
    made = EndpointReadySensor(
        task_id="ready", model={"type": "vertex_endpoint", "name": "g", "endpoint": endpoint}
    )
    task = Task()
    end = SensorResult(outcome="met", polls=1, waited_seconds=0.0, value={"latency_seconds": 0.5})
    assert made.execute_complete({"ti": task}, end.to_event())["latency_seconds"] == 0.5
    assert "/endpoints/7?project=p" in task.pushed["llmbeam_endpoint_link"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": {"type": "claude"}}, r"Task 'ready': `model.type`: must be one of"),
        ({"model": {"type": "openai"}}, "`model.name`: this field is needed"),
        ({"model": {"name": "{{ x }}", "type": "openai", "key": "k"}}, "`model.key`: there is no such field"),
        ({"model": 7}, "`model`: "),
        ({"model": {"type": "echo"}, "max_latency_seconds": 0}, r"`max_latency_seconds` must be > 0; got 0\."),
    ],
)
def test_invalid_literal_values_are_refused_when_the_dag_is_parsed(given, words):
    with pytest.raises(JobSpecError, match=words):
        EndpointReadySensor(task_id="ready", **given)


def test_templated_values_are_not_checked_when_the_dag_is_parsed():
    with DAG("d", schedule=None):
        made = EndpointReadySensor(task_id="before", model={"type": "echo"})
        after = EndpointReadySensor(task_id="after", model=made.output["model"])
        EndpointReadySensor(task_id="name", model={"type": "openai", "name": "{{ params.name }}"})
        EndpointReadySensor(task_id="all", model="{{ params.model }}")
    assert after.upstream_task_ids == {"before"}
    assert all(hasattr(made, field) for field in made.template_fields)


def test_each_kind_of_reply_has_its_poll_result():
    def read(outcome, seconds=1.0, **reply):
        return judge_reply(ProbeReply(outcome=outcome, seconds=seconds, **reply), "Model 'g'", 2.0)

    assert read("answered") == {"latency_seconds": 1.0}
    assert read("answered", 2.0) == {"latency_seconds": 2.0}
    assert isinstance(read("answered", 2.1), Wait)
    assert read("rejected", retry_after_seconds=9.0).seconds == 9.0
    assert read("failed", message="HTTP 503: x").message == "Model 'g' does not answer yet: HTTP 503: x."
    with pytest.raises(EndpointRefusedError, match="HTTP 401: Wrong"):
        read("failed", message="HTTP 401: Wrong.", is_final=True)


def test_a_model_is_named_with_its_address():
    assert describe_model(parse_model({"type": "echo"})) == "Model 'echo'"
    assert describe_model(parse_model({"type": "openai", "name": "g"})) == "Model 'g' at https://api.openai.com/v1"
