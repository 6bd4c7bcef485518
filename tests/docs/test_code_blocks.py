"""Every block of code in the README and in docs/ is executed, parsed or found to exist."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import sqlglot
import yaml
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG, Param, task
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference
from apache_beam.yaml import main as yaml_main

from airflow_provider_llmbeam import spec
from airflow_provider_llmbeam.cli import llmbeam
from airflow_provider_llmbeam.operators.compare_inference import CompareInferenceOperator
from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.inference_endpoint import inference_endpoint
from airflow_provider_llmbeam.operators.model_registry import PromoteModelOperator, RollBackModelOperator
from airflow_provider_llmbeam.operators.retry_failed_rows import RetryFailedRowsOperator
from airflow_provider_llmbeam.operators.review_answers import (
    AddGoldenRowsOperator,
    SampleAnswersOperator,
    review_answers,
)
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.operators.stream_inference import StreamInferenceOperator
from airflow_provider_llmbeam.operators.sweep_batch_inference import SweepBatchInferenceOperator
from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor
from airflow_provider_llmbeam.spec import JobSpec

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name not in ("_build", "how-to")),
]
JOBS = (ROOT / "docs" / "jobs.md").read_text()
#: Languages of blocks without code: output of a program, and directives of the documentation.
NOT_CODE = re.compile(r"text$|\{")
#: The rest of a job whose page shows a part of it.
REST = {
    "source": {"uri": "gs://my-bucket/in.csv", "key": ["id"]},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "gemini", "name": "gemini-3.5-flash-lite", "project": "my-project"},
    "sink": {"uri": "gs://my-bucket/out"},
}
PARTS = ("source", "prompt", "model", "sink", "inference", "limits", "runner", "generation", "cache")


def blocks() -> list[Any]:
    found = []
    for page in PAGES:
        job = ""  # the arguments that a page gives once, for all its operators
        for number, (indent, language, code) in enumerate(
            re.findall(r"^( *)```(\S+)\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
        ):
            code = re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
            if language == "python":
                code = job + code
                if code.startswith("JOB = "):
                    job = code[: code.index("\n}\n") + 3]
            found.append(pytest.param(language, code, id=f"{page.stem}-{number}-{language}"))
    return found


def names() -> dict[str, Any]:
    """What a fragment may use without an import.

    A page writes `...` for those arguments of an operator that do not matter there.
    """

    def operator(*rest: Any, **arguments: Any) -> RunInferenceOperator:
        return RunInferenceOperator(**(({"task_id": "judge"} | REST) if rest else {}) | arguments)

    async def tell_us() -> None: ...

    job = {name: part for name, part in REST.items() if name != "model"}
    prompts = beam.Pipeline() | beam.Create(["a"])
    tickets = beam.Pipeline() | beam.Create([beam.Row(id=1, text="a")])
    values = {
        "MODEL": REST["model"],
        "LIMITS": {"requests_per_minute": 600},
        "JOB": job,
        "tell_us": tell_us,
        "task": task,
        "prompts": prompts,
        "tickets": tickets,
    }
    classes = (
        DAG, AsyncCallback, CompareInferenceOperator, DeadlineAlert, DeadlineReference, EstimateInferenceOperator,
        AddGoldenRowsOperator, EvaluateInferenceOperator, PromoteModelOperator, QuotaHealthSensor,
        RollBackModelOperator, SampleAnswersOperator, SmtpNotifier, SweepBatchInferenceOperator,
        RetryFailedRowsOperator, StreamInferenceOperator, inference_endpoint, review_answers, timedelta,
    )  # fmt: skip
    return (
        {name: getattr(spec, name) for name in spec.__all__}
        | {each.__name__: each for each in classes}
        | {"RunInferenceOperator": operator}
        | values
    )


def execute(code: str) -> dict[str, Any]:
    scope = names()
    with DAG("shown", schedule=None, params={"question": Param(""), "tenant": Param("")}):
        exec(code, scope)
    return scope


def build_yaml_pipeline(code: str) -> None:
    """Builds a pipeline of Beam YAML as its command line does, without running it."""
    _, build, _ = yaml_main.build_pipeline_components_from_argv(["--yaml_pipeline", code])
    build(beam.Pipeline())


def check_shell(code: str) -> None:
    """Checks that the programs of this package exist; what others do is not run."""
    for line in code.splitlines():
        for command in re.findall(r"^\$ (.*)", line):
            plain = re.sub(r"[&;()]", " ", command.replace("$(", " ").replace("--conn-type llmbeam", ""))
            words = shlex.split(plain, comments=True)
            for word, after in zip(words, [*words[1:], ""], strict=True):
                if word == "-m" and after.startswith("airflow_provider_llmbeam"):
                    assert importlib.util.find_spec(f"{after}.__main__"), after
                if word == "llmbeam":
                    assert after in llmbeam.commands, after
                if word.startswith("scripts/"):
                    assert (ROOT / word).exists(), word


@pytest.mark.parametrize(("language", "code"), blocks())
def test_a_block_of_code_is_right(language: str, code: str) -> None:
    if NOT_CODE.match(language):
        return
    match language:
        case "python":
            scope = execute(code.replace("{{ params.tenant }}", "acme"))
            shown = {name: scope[name] for name in PARTS if isinstance(scope.get(name), dict)}
            if shown:
                job = REST | {"name": "shown", "state_uri": "gs://my-bucket/state"} | shown
                assert JobSpec.problems(job) == ()
        case "json":
            assert JobSpec.problems(json.loads(code)) == ()
        case "sql":
            assert sqlglot.parse_one(code, dialect="bigquery")
        case "yaml" if code.startswith("apiVersion:"):
            assert {"apiVersion", "kind", "metadata", "spec"} == yaml.safe_load(code).keys()
        case "yaml":
            build_yaml_pipeline(code)
        case "console":
            check_shell(code)
        case _:
            pytest.fail(f"Blocks in {language!r} are not checked.")


def test_a_wrong_block_fails() -> None:
    with pytest.raises(ValueError, match="requests_per_minute"):
        execute('RunInferenceOperator(..., limits={"requests_per_minute": -1})')
    with pytest.raises(ValueError, match="missing provider for type LLMInferenz"):
        build_yaml_pipeline("pipeline: {transforms: [{type: LLMInferenz}]}")
    with pytest.raises(AssertionError):
        check_shell("$ scripts/no-such-script")
    with pytest.raises(AssertionError):
        check_shell("$ python -m airflow_provider_llmbeam.spec --help")
    with pytest.raises(AssertionError):
        check_shell("$ llmbeam fly")


@pytest.mark.parametrize(
    "text", re.findall(r"^\| `(\{[^`]+\})`", (ROOT / "docs/jobs.md").read_text(), re.MULTILINE)
)
def test_every_source_and_sink_of_a_table_is_valid(text: str) -> None:
    part = eval(text.replace("{…}", '{"id": 1}'))
    job = REST | {
        "name": "shown",
        "state_uri": "gs://b/state",
        "task": "embed" if "collection" in text else "generate",
    }
    assert JobSpec.problems(job | {"model": {"type": "echo"}, "source" if "key" in part else "sink": part}) == ()
