"""What a Dag file names is allowed; what Airflow renders, maps or takes from an XCom needs the configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.compare_inference import CompareInferenceOperator
from airflow_provider_llmbeam.operators.endpoint import ProvisionEndpointOperator
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.operators.sweep_batch_inference import SweepBatchInferenceOperator
from airflow_provider_llmbeam.operators.taskflow import llmbeam_task
from airflow_provider_llmbeam.sensors.endpoint import EndpointReadySensor
from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor
from airflow_provider_llmbeam.spec import PrismRunner
from airflow_provider_llmbeam.spec.endpoint import parse_endpoint

TASK = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1, xcom_push=lambda **_: None)
SIMPLE: dict[str, Any] = {
    "task_id": "t",
    "source": {"uri": "in.csv", "key": "id"},
    "prompt": "Judge: {{ row.text }}",
    "model": "echo",
    "sink": "out/",
}
DETECTOR = {"type": "custom", "name": "X", "function": "{{ params.f }}"}
PRISM = {"type": "prism", "binary_path": "/bin/true"}
MODEL = {"type": "openai", "name": "m", "base_url": "http://127.0.0.1:1/v1", "api_key_env": "THE_KEY"}
JUDGE = {"type": "judge", "rubric": "{{ row.answer }}", "model": MODEL}


def rendered(task: Any, **params: str) -> Any:
    task.render_template_fields({"params": params})
    return task


def spec_of(task: Any) -> Any:
    return task._job({"ti": TASK})[0]


@pytest.mark.parametrize(
    "parts",
    [
        {"safety": {"privacy": {"detectors": [DETECTOR]}}},
        {"safety": "{'privacy': {'detectors': [{'type': 'custom', 'name': 'X', 'function': '{{ params.f }}'}]}}"},
        {"runner": {"type": "prism", "binary_path": "{{ params.f }}"}},
        {"model": {**MODEL, "api_key_env": "{{ params.v }}"}},
        {"sink": {"type": "postgres", "table": "t", "dsn_env": "{{ params.v }}"}, "state_uri": "s"},
    ],
)
def test_what_a_template_names_is_refused(parts: dict[str, Any]) -> None:
    task = rendered(RunInferenceOperator(**SIMPLE | parts), f="os:system", v="AIRFLOW_CONN_DB")
    with pytest.raises(JobSpecError, match=r"is named neither in a Dag file nor in"):
        spec_of(task)


def test_the_image_of_a_model_server_is_that_of_the_dag_file_or_configured() -> None:
    endpoint = {
        "type": "cloud_run",
        "model": "Qwen/Qwen3-4B",
        "locations": ["us-central1"],
        "project": "my-project",
    }
    for image, is_refused in (("{{ params.image }}", True), ("evil:1", False)):
        task = ProvisionEndpointOperator(task_id="t", name="n", endpoint=endpoint | {"image": image})
        task.render_template_fields({"params": {"image": "evil:1"}})
        checked = parse_endpoint(task.endpoint)
        if is_refused:
            with pytest.raises(JobSpecError, match=r"'evil:1' is named neither"):
                task._trigger({"ti": TASK})
        else:
            task._check_allowed({"endpoint": checked})


def test_a_template_cannot_add_to_what_the_dag_file_names() -> None:
    text = '{"privacy": {"detectors": [{"type": "custom", "name": "{{ params.n }}", "function": "acme:orders"}]}}'
    task = RunInferenceOperator(**SIMPLE | {"safety": text})
    assert spec_of(rendered(task, n="ORDER")).safety.privacy.detectors[0].function == "acme:orders"
    more = 'A", "pattern": "x"}, {"type": "custom", "function": "os:system", "name": "B"}, '
    more += '{"type": "custom", "name": "C'
    task = RunInferenceOperator(**SIMPLE | {"safety": text})
    with pytest.raises(JobSpecError, match=r"'os:system' is named neither"):
        spec_of(rendered(task, n=more))


@pytest.mark.parametrize("runner", [PRISM, PrismRunner.parse(PRISM), str(PRISM)])
def test_what_the_dag_file_names_is_free(runner: Any) -> None:
    safety = {"privacy": {"detectors": [{**DETECTOR, "function": "acme:orders"}]}}
    task = rendered(RunInferenceOperator(**SIMPLE | {"runner": runner, "safety": safety, "model": MODEL}))
    assert spec_of(task).runner.binary_path == "/bin/true"


def test_the_configuration_allows_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    task = rendered(
        RunInferenceOperator(**SIMPLE | {"safety": {"privacy": {"detectors": [DETECTOR]}}}), f="acme:a"
    )
    monkeypatch.setenv("AIRFLOW__LLMBEAM__ALLOWED_FUNCTIONS", "acme:*")
    assert spec_of(task).safety.privacy.detectors[0].function == "acme:a"


def mapped(**arguments: Any) -> Any:
    """Returns the instance of a mapped task, as Airflow makes it of an argument that is an XCom."""
    with DAG("d"):
        return RunInferenceOperator.partial(
            **{name: value for name, value in SIMPLE.items() if name != "model"}, **arguments
        ).expand(model=[MODEL, "echo"])


def test_a_mapped_task_names_what_its_dag_file_has() -> None:
    task = mapped(runner=PrismRunner.parse(PRISM))
    assert spec_of(task.unmap({"model": MODEL})).runner.binary_path == "/bin/true"


def test_a_mapped_task_takes_nothing_else_from_an_xcom() -> None:
    with pytest.raises(JobSpecError, match=r"`model\.api_key_env`: 'OTHER' is named neither"):
        spec_of(mapped().unmap({"model": {**MODEL, "api_key_env": "OTHER"}}))


def test_what_a_function_of_a_dag_returns_needs_the_configuration() -> None:
    def parts() -> Any:
        return {}

    with DAG("d"):
        made = llmbeam_task(parts, **{**SIMPLE, "runner": PRISM})()
    task: Any = rendered(made.operator)
    task._take({"source": {"uri": "in.csv", "key": "id"}})
    assert spec_of(task).runner.binary_path == "/bin/true"
    task._take({"source": {"uri": "in.csv", "key": "id"}, "runner": {**PRISM, "binary_path": "/tmp/evil"}})
    with pytest.raises(JobSpecError, match=r"'/tmp/evil' is named neither"):
        spec_of(task)


def test_a_preview_is_of_the_person_who_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Process:
        def __init__(self, spec: Any, *_: Any, **others: Any) -> None:
            seen.append(spec)

        def run_step(self, *_: Any) -> dict[str, Any]:
            return {}

    monkeypatch.setattr("airflow_provider_llmbeam.operators.run_inference.JobProcess", Process)
    monkeypatch.setattr("airflow_provider_llmbeam.spec.protocol.preview.Preview.of", lambda found: found)
    RunInferenceOperator(**SIMPLE | {"runner": PRISM}).preview()
    assert seen[0].runner.binary_path == "/bin/true"


@pytest.mark.parametrize(
    "make",
    [
        lambda function, key: EvaluateInferenceOperator(
            **SIMPLE,
            golden={"uri": "g.csv", "key": "id"},
            metrics={
                "f": {"type": "python", "function": function},
                "j": {**JUDGE, "model": {**MODEL, "api_key_env": key}},
            },
        ),
        lambda _, key: CompareInferenceOperator(**SIMPLE, other={"model": {**MODEL, "api_key_env": key}}),
        lambda function, _: QuotaHealthSensor(
            task_id="t",
            model="echo",
            demand={
                **{name: SIMPLE[name] for name in ("source", "prompt", "sink")},
                "safety": {"privacy": {"detectors": [{**DETECTOR, "function": function}]}},
            },
        ),
        lambda _, key: QuotaHealthSensor(task_id="t", model={**MODEL, "api_key_env": key}),
        lambda _, key: EndpointReadySensor(task_id="t", model={**MODEL, "api_key_env": key}),
        lambda _, key: SweepBatchInferenceOperator(
            task_id="t", model={**MODEL, "base_url": "https://api.openai.com/v1", "api_key_env": key}
        ),
    ],
    ids=["evaluate", "compare", "quota of a job", "quota", "ready", "sweep"],
)
def test_every_task_with_a_spec_asks(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Allowed(BaseException):
        pass

    def go_on(*_: Any, **__: Any) -> Any:
        raise Allowed

    for place in (
        "operators.in_process.JobProcess",
        "sensors.quota.JobProcess",
        "triggers.sensor.SensorTrigger.poll_condition",
        "hooks.llmbeam.open_model",
    ):
        monkeypatch.setattr(f"airflow_provider_llmbeam.{place}", go_on)
    with pytest.raises(AirflowFailException, match="is named neither in a Dag file nor in"):
        rendered(make("{{ params.f }}", "{{ params.v }}"), f="os:system", v="AIRFLOW_CONN_DB").execute(
            {"ti": TASK}
        )
    with pytest.raises(Allowed):
        rendered(make("acme:orders", "THE_KEY")).execute({"ti": TASK})
