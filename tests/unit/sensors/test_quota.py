from __future__ import annotations

import asyncio
import importlib
import json
from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG
from airflow.sdk.bases.sensor import AirflowRescheduleException
from llmbeam_sandbox import EndpointSettings, Fault, ModelSettings, Proxy, Quota, Sandbox

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor
from airflow_provider_llmbeam.spec import Demand, GeminiModel, VertexEndpoint
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion
from airflow_provider_llmbeam.triggers.base import PollingTrigger
from airflow_provider_llmbeam.triggers.sensor import QuotaTrigger
from tests.clouds import use_environment

NAME = "gemini-2.5-flash"
MODEL = {"type": "gemini", "name": NAME, "project": "llmbeam-sandbox"}
GENERATE = "gemini.generateContent"
SERVED = {"type": "vertex_endpoint", "name": "g/embeddinggemma", "endpoint": "projects/p/locations/l/endpoints/1"}
MODES = {
    "deferrable": {},
    "poke": {"deferrable": False},
    "reschedule": {"deferrable": False, "mode": "reschedule"},
}


class Task:
    """Fake of a task instance with the methods that a sensor uses."""

    def __init__(self):
        self.pushed = {}

    def get_first_reschedule_date(self, context):
        return None

    def xcom_push(self, key, value):
        self.pushed[key] = value


def sensor(**given):
    return QuotaHealthSensor(**{"task_id": "gate", "model": MODEL, "poke_interval": 0.05, **given})


def executed(made, task=None):
    return made.execute({"ti": task or Task()})


def full(sandbox, location="global"):
    sandbox.monitoring.add_traffic(
        NAME, location=location, minutes=30, requests_per_minute=10, rejected_per_minute=90
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_pool_with_headroom_needs_no_wait_in_any_mode(google, sandbox, mode):
    task = Task()
    found = executed(sensor(limits={"budget_usd": 5}, **MODES[mode]), task)
    assert (found["verdict"], found["location"], found["polls"]) == ("healthy", "global", 1)
    link = task.pushed.pop("llmbeam_quota_link")
    assert link.endswith("/iam-admin/quotas?project=llmbeam-sandbox&service=aiplatform.googleapis.com")
    assert task.pushed == {
        "limits": {"budget_usd": 5},
        "model": MODEL | {"location": "global"},
        "location": "global",
    }
    assert sandbox.stats()["methods"][GENERATE]["calls"] == 8
    assert 0 < found["probe_usd"] < 0.001
    json.dumps(found)


def test_without_headroom_the_sensor_waits_in_the_triggerer(google, sandbox):
    full(sandbox)
    with pytest.raises(TaskDeferred) as deferred:
        executed(sensor(probe_requests=0, poke_interval=60))
    trigger = deferred.value.trigger
    assert isinstance(trigger, QuotaTrigger)
    assert trigger.arguments["question"] == {
        "model": MODEL,
        "min_fit_ratio": 1.0,
        "probe_requests": 0,
        "max_probe_usd": 0.05,
    }


def test_the_trigger_polls_until_there_is_headroom(google, sandbox, monkeypatch):
    monkeypatch.setattr(PollingTrigger, "first_poll_delay_seconds", 0.0)
    sandbox.faults.queue(GENERATE, *[Fault(kind="rate-limit")] * 6)
    made = sensor(limits={"requests_per_minute": 600})
    with pytest.raises(TaskDeferred) as deferred:
        executed(made)
    path, arguments = deferred.value.trigger.serialize()
    name, _, attribute = path.rpartition(".")
    trigger = getattr(importlib.import_module(name), attribute)(**json.loads(json.dumps(arguments)))
    assert trigger.serialize() == (path, arguments)

    async def events():
        return [event.payload async for event in trigger.run()]

    (event,) = asyncio.run(events())
    task = Task()
    found = made.execute_complete({"ti": task}, json.loads(json.dumps(event)))
    assert (found["polls"], found["verdict"]) == (3, "healthy")
    assert task.pushed["limits"] == {"requests_per_minute": 600.0}


LEARNED = {"requests_per_minute": 100.0, "learned_at": 1_764_000_000.0}


@pytest.mark.parametrize(
    "mode", ["deferrable", *(pytest.param(mode, marks=pytest.mark.full) for mode in ("poke", "reschedule"))]
)
def test_a_pool_without_a_known_rate_has_the_duration_at_the_rate_that_an_earlier_job_has_learned(
    google, sandbox, monkeypatch, mode
):
    monkeypatch.setattr(PollingTrigger, "first_poll_delay_seconds", 0.0)
    sandbox.faults.queue(GENERATE, *[Fault(kind="rate-limit")] * 3)
    demand = {"rows": 60_000, "input_tokens_per_row": 900, "learned_rate": LEARNED}
    made = sensor(demand=demand, window=timedelta(hours=5), **MODES[mode])
    task = Task()
    if mode == "deferrable":
        with pytest.raises(TaskDeferred) as deferred:
            executed(made, task)

        async def events():
            return [event.payload async for event in deferred.value.trigger.run()]

        (event,) = asyncio.run(events())
        found = made.execute_complete({"ti": task}, json.loads(json.dumps(event)))
    elif mode == "reschedule":
        with pytest.raises(AirflowRescheduleException):
            executed(made, task)
        found = executed(made, task)
    else:
        found = executed(made, task)
    assert found["sentence"].endswith(
        "The job would take 10.0 h at the rate that an earlier job has learned (100 requests per minute on "
        "2025-11-24 16:00 UTC), and its window holds 50% of it."
    )
    assert found["learned_rate"] == {**LEARNED, "tokens_per_minute": None}
    assert (found["expected_seconds"], found["fit_ratio"]) == (36_000.0, 0.5)
    assert task.pushed["limits"] == {}, "the job learns its rate anew"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (
            {},
            "At the thresholds of Standard PayGo it would take 6.4 h at usage tier 1, 3.2 h at usage tier 2, "
            "77 min at usage tier 3.",
        ),
        (
            {"usage_tier": 2},
            "The job would take 3.2 h at usage tier 2, and the pool above it may admit more, and its window holds "
            "94% of it.",
        ),
    ],
)
def test_a_pool_has_the_duration_at_the_thresholds_of_standard_paygo(google, sandbox, limits, words):
    demand = {"rows": 800_000, "input_tokens_per_row": 900, "output_tokens_per_row": 60}
    found = executed(sensor(demand=demand, window=timedelta(hours=3), limits=limits, deferrable=False))
    assert found["sentence"].endswith(words)
    assert found["tier_seconds"]["2"] == 11_520.0


@pytest.mark.parametrize(("limits", "tier", "handed_on"), [({}, 3, {}), ({"usage_tier": 2}, 2, {"usage_tier": 2})])
def test_the_tier_of_the_connection_counts_unless_the_sensor_has_one_and_is_not_handed_on(
    google, sandbox, monkeypatch, limits, tier, handed_on
):
    connection = {"conn_type": "llmbeam", "extra": {"usage_tier": 3}}
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps(connection))
    task = Task()
    demand = {"rows": 800_000, "input_tokens_per_row": 900, "output_tokens_per_row": 60}
    found = executed(sensor(demand=demand, window=timedelta(hours=4), limits=limits, deferrable=False), task)
    assert [*found["tier_seconds"]] == [str(tier)]
    assert f"at usage tier {tier}, and the pool above it may admit more" in found["sentence"]
    assert task.pushed["limits"] == handed_on


@pytest.mark.parametrize(("soft_fail", "wanted"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)])
def test_a_timeout_without_headroom_fails_or_skips_with_the_reason(google, sandbox, soft_fail, wanted):
    full(sandbox)
    made = sensor(probe_requests=0, timeout=0, soft_fail=soft_fail, deferrable=False)
    with pytest.raises(
        wanted, match=r"is exhausted: Of 1,000 requests .* 90\.0% were rejected.*No job was started"
    ):
        executed(made)


def test_an_unknown_verdict_does_not_end_the_wait(google, sandbox):
    with pytest.raises(AirflowSensorTimeout, match=r"is unknown: Cloud Monitoring shows no request"):
        executed(sensor(probe_requests=0, timeout=0, deferrable=False))


def test_a_job_that_does_not_fit_into_its_window_waits_or_starts_in_part(google, sandbox):
    given = {
        "demand": Demand(rows=36_000, input_tokens_per_row=900, output_tokens_per_row=100),
        "window": timedelta(minutes=30),
        "limits": {"requests_per_minute": 600},
    }
    with pytest.raises(AirflowSensorTimeout, match=r"would take 60 min .*its window holds 50% of it"):
        executed(sensor(**given, timeout=0, deferrable=False))
    found = executed(sensor(**given, min_fit_ratio=0.5))
    assert (found["fit_ratio"], found["expected_seconds"]) == (0.5, 3600.0)


def test_the_healthiest_of_several_locations_is_taken(google, sandbox):
    full(sandbox, "us-central1")
    for location in ("europe-west1", "europe-west4"):
        sandbox.monitoring.add_traffic(NAME, location=location, minutes=30, requests_per_minute=95)
    sandbox.monitoring.add_traffic(
        NAME, location="europe-west1", minutes=30, requests_per_minute=0, rejected_per_minute=5
    )
    task = Task()
    made = sensor(locations=("us-central1", "europe-west1", "europe-west4"), probe_requests=0)
    found = executed(made, task)
    assert task.pushed["model"]["location"] == found["location"] == "europe-west4"
    assert {other["location"]: other["verdict"] for other in found["others"]} == {
        "us-central1": "exhausted",
        "europe-west1": "degraded",
    }


def test_a_location_without_the_model_leaves_the_others(google, sandbox):
    sandbox.faults.queue(GENERATE, Fault(kind="error", http_status=404, message="no such model here"))
    found = executed(sensor(locations=("us-east5", "global")))
    assert (found["location"], found["others"]) == ("global", [])


@pytest.mark.parametrize("soft_fail", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_that_waiting_will_not_resolve_fails_at_once(sandbox, monkeypatch, mode, soft_fail):
    monkeypatch.setenv("GOOGLE_API_KEY", "invalid")
    model = {"type": "gemini", "base_url": sandbox.gemini_url}
    with pytest.raises(AirflowFailException, match=r"HTTP 400: API key not valid.* Nothing of the job was sent"):
        executed(sensor(model=model, soft_fail=soft_fail, **MODES[mode]))


def test_probing_costs_at_most_max_probe_usd(google, sandbox, monkeypatch):
    # 10 input tokens and 1 output token at 0.30 and 2.50 dollars per million: 0.0000055 dollars per request.
    found = executed(sensor(max_probe_usd=0.000018))
    assert sandbox.stats()["methods"][GENERATE]["calls"] == 3
    assert found["probe_usd"] <= 0.000018
    with pytest.raises(AirflowSensorTimeout, match="No probe request was sent: `max_probe_usd` is used up"):
        executed(sensor(max_probe_usd=1e-9, timeout=0, deferrable=False))
    with pytest.raises(AirflowSensorTimeout, match="is unknown: Cloud Monitoring shows no request"):
        executed(sensor(max_probe_usd=0, timeout=0, deferrable=False))


def test_reschedule_mode_frees_the_worker_slot(google, sandbox):
    full(sandbox)
    with pytest.raises(AirflowRescheduleException):
        executed(sensor(**MODES["reschedule"], probe_requests=0, poke_interval=60))


def test_the_location_with_enough_accelerators_is_chosen_for_an_endpoint(monkeypatch):
    with (
        Sandbox(endpoints=EndpointSettings(gpu_quota={"europe-west4": {"NVIDIA_L4": 4}})) as sandbox,
        Proxy(sandbox) as proxy,
    ):
        use_environment(monkeypatch, proxy.environment())
        endpoint = VertexEndpoint(
            type="vertex",
            model="google/gemma3@gemma-3-4b-it",
            accept_eula=True,
            machine_type="g2-standard-24",
            locations=("us-central1", "europe-west4"),
        )
        task = Task()
        found = executed(sensor(model=None, endpoint=endpoint), task)
    assert found["location"] == "europe-west4"
    assert task.pushed["endpoint"]["locations"] == ["europe-west4", "us-central1"]
    assert "limits" in task.pushed
    assert VertexEndpoint.parse(task.pushed["endpoint"]).machine_type == "g2-standard-24"


def test_the_recommended_limits_exclude_the_usage_of_other_jobs(monkeypatch):
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=600))) as sandbox, Proxy(sandbox) as proxy:
        use_environment(monkeypatch, proxy.environment())
        sandbox.monitoring.add_traffic(
            NAME, minutes=30, requests_per_minute=240, input_tokens=90, output_tokens=10
        )
        limits = {"requests_per_minute": 600, "tokens_per_minute": 30_000}
        found = executed(sensor(limits=limits))
    assert found["limits"] == {"requests_per_minute": 342.0, "tokens_per_minute": 5_700.0}
    assert found["health"]["usage"] == {"requests": 240.0, "tokens": 24_000.0}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": None}, "`model`: exactly one of `model` and `endpoint`"),
        ({"model": {"type": "claude"}}, "`model.type`: must be one of"),
        ({"demand": {"rows": -1, "input_tokens_per_row": 1}}, "`demand.rows`"),
        (
            {"demand": {"rows": 1, "input_tokens_per_row": 1, "learned_rate": {**LEARNED, "learned_at": 1e300}}},
            "`demand.learned_rate.learned_at`",
        ),
        ({"window": 0}, "`window_seconds`"),
        ({"min_fit_ratio": 0}, "`min_fit_ratio`"),
        ({"probe_requests": 51}, "`probe_requests`"),
        ({"limits": {"rpm": 5}}, "`limits.rpm`: there is no such field"),
        (
            {"model": {"type": "echo"}, "locations": ["a"]},
            "`locations`: only a model on Vertex AI",
        ),
        (
            {"demand": {"rows": 1, "input_tokens_per_row": 1}, "min_fit_ratio": 0.5},
            "`window`: this field is needed with `min_fit_ratio`",
        ),
    ],
)
def test_invalid_literal_values_are_refused_when_the_dag_is_parsed(given, words):
    with pytest.raises(JobSpecError, match=words):
        sensor(**given)


def test_the_demand_is_computed_from_a_whole_job(google, sandbox, tmp_path):
    (tmp_path / "in.csv").write_text("id,text\n" + "".join(f"{number},word\n" for number in range(1_000)))
    job = {
        "source": {"uri": f"{tmp_path}/in.csv", "key": ["id"]},
        "prompt": {"template": "{{ row.id }} {{ row.text }}"},
        "generation": {"max_output_tokens": 10},
        "sink": {"uri": f"{tmp_path}/out"},
    }
    made = sensor(demand=job, window=3600, limits={"requests_per_minute": 100})
    assert "prompt" not in made.demand, "Airflow must not render the template of the rows"
    found = executed(made, Named())
    assert (found["expected_seconds"], found["fit_ratio"]) == (600.0, 1.0)
    assert made.demand["output_tokens_per_row"] == 10
    assert sandbox.stats()["methods"][GENERATE]["calls"] == 8  # the probe requests
    with pytest.raises(JobSpecError, match="would read the whole source of `demand` at each poll"):
        sensor(demand=job, **MODES["reschedule"])
    with pytest.raises(JobSpecError, match=r"`prompt\.template`"):
        sensor(demand=job | {"prompt": {"template": "{{ row.id"}})


class Named(Task):
    dag_id, task_id, run_id, map_index = "dag", "gate", "run", -1


@pytest.mark.parametrize(
    ("model", "embeds", "asks_for_vectors"),
    [
        ({"type": "openai", "name": "BAAI/bge-m3"}, True, True),
        ({"type": "openai", "name": "BAAI/bge-m3"}, None, False),
        ({"type": "gemini", "name": "gemini-embedding-001"}, None, True),
        (SERVED, None, False),
    ],
)
def test_a_probe_requests_vectors_if_the_job_does(model, embeds, asks_for_vectors):
    asked = QuotaQuestion.parse({"model": model, "embeds": embeds})
    assert asked.asks_for_vectors is asks_for_vectors


def test_values_from_xcom_are_accepted_like_literal_values():
    made = sensor(window="{{ ti.xcom_pull('w') }}", demand="{{ ti.xcom_pull('job') }}")
    made.window, made.demand = timedelta(hours=1), {"prompt": {"template": "{{ row.text }}"}, "source": {}}
    assert made._question()["window_seconds"] == 3600.0
    assert made._job_data("name")["prompt"] == {"template": "{{ row.text }}"}


def test_a_job_without_rows_does_not_wait(google, sandbox):
    full(sandbox)
    demand = {"rows": 0, "input_tokens_per_row": 0}
    found = executed(sensor(demand=demand, probe_requests=0))
    assert found["verdict"] == "exhausted"


@pytest.mark.parametrize(("on_empty", "starts"), [("skip", True), ("write", True), ("fail", False)])
def test_a_whole_job_with_an_empty_source_starts_where_it_allows_for_one(google, tmp_path, on_empty, starts):
    (tmp_path / "rows.jsonl").touch()
    job = {
        "source": {"uri": str(tmp_path / "rows.jsonl"), "key": ["id"], "on_empty": on_empty},
        "prompt": {"template": "{{ row.id }}"},
        "sink": {"uri": str(tmp_path / "out")},
    }
    made = sensor(demand=job, window=3600, probe_requests=0)
    if starts:
        assert executed(made, Named())["expected_seconds"] in (None, 0)
        return
    with pytest.raises(AirflowFailException, match="has no row to send"):
        executed(made, Named())


def test_the_job_uses_the_limits_of_the_sensor():
    with DAG("d", schedule=None):
        gate = sensor(demand="{{ ti.xcom_pull('estimate', key='demand') }}", model=GeminiModel(project="p"))
        judge = RunInferenceOperator(
            task_id="judge",
            source={"uri": "a.csv", "key": ["id"]},
            prompt={"template": "{{ row.text }}"},
            model=gate.output["model"],
            limits=gate.output["limits"],
            sink={"uri": "out"},
        )
    assert judge.upstream_task_ids == {"gate"}
    assert all(hasattr(gate, field) for field in gate.template_fields)
