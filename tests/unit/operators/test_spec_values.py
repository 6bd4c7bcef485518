"""Arguments that are values of `spec`, within others, within mappings, or returned by a function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.compare_inference import CompareInferenceOperator
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.other_models import OtherModels
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.operators.stream_inference import StreamInferenceOperator
from airflow_provider_llmbeam.operators.taskflow import _LLMBeamDecoratedOperator
from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor
from airflow_provider_llmbeam.spec import (
    AnswerVectors,
    FilesSink,
    FilesSource,
    GeminiModel,
    JobSpec,
    PromptTemplate,
)
from airflow_provider_llmbeam.spec.evaluation import Alternative, Judge, JudgeMetric
from airflow_provider_llmbeam.spec.safety import Moderation, Safety
from tests.unit.operators.test_arguments import SIMPLE, TASK

GATEWAY = "https://gateway.example"
MODEL = GeminiModel(name="gemini-2.5-flash-lite")
GUARD = Moderation(model=MODEL, system="x", verdict="json")


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"conn_type": "llmbeam", "host": GATEWAY, "password": "the-key", "extra": {"project": "p"}}
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps(value))
    monkeypatch.setenv("AIRFLOW__LLMBEAM__TOKEN_HOSTS", "gateway.example")


@pytest.mark.parametrize("safety", [Safety(moderation=GUARD), {"moderation": GUARD}], ids=["value", "mapping"])
def test_a_guard_that_is_a_spec_value_gets_what_the_connection_provides(safety: Any) -> None:
    spec, environment = RunInferenceOperator(**SIMPLE, safety=safety)._job({"ti": TASK})
    moderation = spec.safety.moderation
    assert moderation is not None
    assert moderation.model == MODEL.model_copy(update={"base_url": GATEWAY, "project": "p"})
    assert environment == {"GOOGLE_API_KEY": "the-key"}


def test_the_embedding_model_of_a_sink_gets_what_the_connection_provides() -> None:
    queue = {"type": "pubsub", "subscription": "projects/p/subscriptions/s"}
    embed = AnswerVectors(model=GeminiModel(name="gemini-embedding-001"))
    sink = {"type": "milvus", "uri": "a.db", "collection": "a", "embed": embed}
    given = {**SIMPLE, "source": queue, "sink": sink, "sinks": [{**sink, "collection": "b"}], "state_uri": "state"}
    spec, _ = StreamInferenceOperator(**given)._job({"ti": TASK})
    assert [model.base_url for model in spec.models] == [GATEWAY] * 3


def test_a_model_that_a_function_returns_as_a_spec_value_gets_what_the_connection_provides() -> None:
    task = _LLMBeamDecoratedOperator(python_callable=lambda: None, **SIMPLE)
    task._take({"model": MODEL, "safety": {"moderation": GUARD}})
    spec, environment = task._job({"ti": TASK})
    assert [model.base_url for model in spec.models] == [GATEWAY, GATEWAY]
    assert environment == {"GOOGLE_API_KEY": "the-key"}


def test_a_model_that_is_a_spec_value_when_it_is_rendered_gets_what_the_connection_provides() -> None:
    """As Airflow hands over an XCom of a class in `[core] allowed_deserialization_classes`."""
    task = RunInferenceOperator(**{**SIMPLE, "model": "{{ ti.xcom_pull(task_ids='choose') }}"})
    task.model, task.safety = MODEL, {"moderation": GUARD}
    spec, _ = task._job({"ti": TASK})
    assert [model.base_url for model in spec.models] == [GATEWAY, GATEWAY]


def test_the_models_of_an_evaluation_and_of_a_comparison_may_be_spec_values() -> None:
    judge = JudgeMetric(type="judge", model=MODEL, rubric="{{ row.text }} {{ row.answer }}")
    evaluate = EvaluateInferenceOperator(**SIMPLE, golden={"uri": "g.csv", "key": "id"}, metrics={"good": judge})
    compare = CompareInferenceOperator(
        **SIMPLE,
        other=Alternative(model=MODEL),
        judge=Judge(rubric="{{ row.first }} {{ row.second }}", model=MODEL),
    )
    models = OtherModels(compare.model, "llmbeam_default", {})
    given = [evaluate._input_data()["metrics"]["good"], *map(compare._input_data().get, ("other", "judge"))]
    found = [models.complete_model(part["model"]) for part in given]
    assert [model["base_url"] for model in found] == [GATEWAY] * 3


def test_the_demand_of_a_sensor_may_be_the_spec_of_a_job() -> None:
    demand: Any = JobSpec(
        name="night",
        source=FilesSource(uri="in.csv", key=("ticket_id",)),
        prompt=PromptTemplate(template=SIMPLE["prompt"]),
        model=MODEL,
        sink=FilesSink(uri="out/"),
    )
    sensor = QuotaHealthSensor(task_id="gate", model=MODEL, demand=demand)
    assert sensor.demand["model"] == {"type": "gemini", "name": MODEL.name}


def test_paths_are_addresses_and_one_that_lost_a_slash_is_refused_when_the_dag_is_parsed(tmp_path) -> None:
    arguments = {
        "task_id": "judge",
        "source": {"uri": tmp_path / "rows.csv", "key": "id"},
        "prompt": "{{ row.text }}",
        "model": "echo",
    }
    task = RunInferenceOperator(**arguments, sink=ObjectStoragePath("gs://b/out"), state_uri=tmp_path)
    assert (task.source["uri"], task.sink, task.state_uri) == (f"{tmp_path}/rows.csv", "gs://b/out", str(tmp_path))
    with pytest.raises(JobSpecError, match=r"`sink\.uri`: would be a local path that begins with 'gs:/'"):
        RunInferenceOperator(**arguments, sink=Path("gs://b/out"))
