"""Tests that the examples and paths in the README are correct."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

import airflow_provider_llmbeam
from airflow_provider_llmbeam.spec import JobSpec

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(airflow_provider_llmbeam.__file__).parent
README = (ROOT / "README.md").read_text()


def code(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_dag_example_equals_its_file():
    assert code("python")[0] == (ROOT / "dags" / "summarise_table.py").read_text()
    assert len(code("python")[0].splitlines()) <= 24


def test_the_dataflow_example_parses():
    from airflow.sdk import DAG

    from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

    with DAG("shown", schedule=None) as dag:
        exec(code("python")[1], {"RunInferenceOperator": RunInferenceOperator})
    assert dag.get_task("judge").runner["type"] == "dataflow"


def test_the_gpu_example_parses():
    from airflow.sdk import DAG

    from airflow_provider_llmbeam.operators.inference_endpoint import inference_endpoint
    from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
    from airflow_provider_llmbeam.spec import VertexEndpoint

    names = (inference_endpoint, RunInferenceOperator, VertexEndpoint)
    with DAG("shown", schedule=None) as dag:
        exec(code("python")[2], {each.__name__: each for each in names})
    assert dag.get_task("endpoint.judge").upstream_task_ids == {"endpoint.provision"}


def test_the_quota_gate_example_parses():
    from datetime import timedelta

    from airflow.sdk import DAG

    from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
    from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
    from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor

    names = (EstimateInferenceOperator, QuotaHealthSensor, RunInferenceOperator, timedelta)
    job = {
        "source": {"uri": "in.csv", "key": ["id"]},
        "prompt": {"template": "{{ row.Hi }}"},
        "sink": {"uri": "out"},
    }
    values = {"MODEL": {"type": "gemini", "project": "p"}, "LIMITS": {"requests_per_minute": 600}, "JOB": job}
    with DAG("shown", schedule=None) as dag:
        exec(code("python")[3], {**{each.__name__: each for each in names}, **values})
    assert dag.get_task("gate").upstream_task_ids == {"estimate"}
    assert dag.get_task("judge").upstream_task_ids == {"gate"}


def test_the_custom_pipeline_example_runs():
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.testing.util import assert_that, equal_to

    own = code("python")[4].replace('GeminiModel(name="gemini-2.5-flash")', "EchoModel(type='echo')")
    own = own.replace("import GeminiModel,", "import EchoModel,")
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        scope = {"prompts": pipeline | beam.Create(["a", "b"])}
        exec(own, scope)
        assert_that(scope["predictions"] | beam.Map(lambda result: result.inference.text), equal_to(["a", "b"]))


MAP = README.partition("## Where things are")[2]


@pytest.mark.parametrize("path", re.findall(r"^\| `([^`]+)` \|", MAP, re.MULTILINE))
def test_every_path_of_the_map_exists(path):
    # The package may be installed from a wheel, outside this folder.
    assert any((folder / path).exists() for folder in (ROOT, PACKAGE.parent))


@pytest.mark.parametrize("text", re.findall(r"^\| `(\{[^`]+\})`", README, re.MULTILINE))
def test_every_source_and_sink_example_is_valid(text):
    part = json.loads(text.replace("{…}", '{"id": 1}'))
    other = {"source": {"uri": "a.csv", "key": ["id"]}, "sink": {"uri": "out"}}
    spec = {
        "name": "shown",
        "task": "embed" if "milvus" in text else "generate",
        "state_uri": "gs://b/state",
        "prompt": {"template": "{{ row.Hi }}"},
        "model": {"type": "echo"},
        **other,
        "source" if "key" in part else "sink": part,
    }
    assert JobSpec.problems(spec) == ()


def test_every_directory_of_the_package_is_in_the_map():
    rings = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {ring for ring in rings if f"airflow_provider_llmbeam/{ring}/`" not in README} == set()


def test_the_demo_command_exists_and_has_a_help_page():
    ended = subprocess.run([ROOT / "scripts" / "demo", "--help"], capture_output=True, text=True, check=True)
    assert "--keep" in ended.stdout
    assert "--model-url" in ended.stdout
