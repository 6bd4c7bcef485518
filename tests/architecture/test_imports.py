"""Tests of the import contracts and of the import cost of the operators in a Dag file."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

import airflow_provider_llmbeam

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("apache_beam", "google.genai", "google.cloud.aiplatform", "google.auth", "pyarrow", "pandas", "aiohttp")
MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(airflow_provider_llmbeam.__path__, "airflow_provider_llmbeam.")
    if not found.name.endswith("__main__")
)
PARSED = [name for name in MODULES if name.split(".")[1] in ("operators", "sensors", "triggers", "provider_info")]
#: Modules that a Dag loads only if it uses them: the form of a review, and `@task.llmbeam`.
IF_USED = {f"airflow_provider_llmbeam.operators.{name}" for name in ("review_form", "taskflow")}
WITHOUT_AIRFLOW = [
    name
    for name in MODULES
    if name.split(".")[1] in ("spec", "transport", "engine", "providers", "pipeline", "beam")
]


def loaded_by(modules: list[str], among: tuple[str, ...], before: str = "json") -> list[str]:
    """Returns the modules of `among` that importing `modules` loads, except those that `before` loads."""
    code = (
        "import importlib, json, sys\n"
        f"importlib.import_module({before!r})\n"
        f"wanted = [name for name in {among!r} if name not in sys.modules]\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(json.dumps([name for name in wanted if name in sys.modules]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def test_the_import_contracts_hold():
    lint = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


def test_the_beam_side_never_loads_airflow():
    assert loaded_by(WITHOUT_AIRFLOW, ("airflow",)) == []


def test_parsing_a_dag_loads_nothing_heavy():
    assert {name.split(".")[1] for name in PARSED} >= {"operators", "provider_info", "triggers"}
    assert loaded_by(PARSED, HEAVY, before="airflow.sdk") == []


def test_importing_the_dataflow_hook_loads_no_client():
    clients = ("google.cloud.dataflow_v1beta3", "google.cloud.storage", "apache_beam")
    assert loaded_by(["airflow_provider_llmbeam.hooks.dataflow"], clients) == []


def test_importing_the_endpoint_hooks_loads_no_client():
    clients = ("google.cloud.aiplatform_v1", "google.cloud.run_v2")
    packages = ("hooks", "endpoints.platforms")
    names = [f"airflow_provider_llmbeam.{each}.{name}" for each in packages for name in ("vertex_ai", "cloud_run")]
    assert loaded_by(names, clients) == []


def test_a_job_without_a_server_or_a_schema_loads_neither_an_http_client_nor_a_validator():
    names = [
        "airflow_provider_llmbeam.providers.echo.client",
        "airflow_provider_llmbeam.engine.engine",
        "airflow_provider_llmbeam.pipeline.steps",
        "airflow_provider_llmbeam.pipeline.privacy.masker",
    ]
    assert loaded_by(names, ("aiohttp", "jsonschema")) == []


def test_the_provider_info_loads_nothing_but_itself():
    assert loaded_by(["airflow_provider_llmbeam.provider_info"], ("airflow", "pydantic", *HEAVY)) == []


@pytest.mark.skipif(
    Version(version("apache-airflow-core")) < Version("3.3"), reason="counted beside the modules of Airflow 3.3"
)
def test_parsing_adds_few_modules_and_calls_to_those_of_airflow():
    # `bench.import_cost` measures the time; these counts are the same on every machine. Not by `tests.counting`: a
    # profiler in Python breaks the comprehensions of a module on Python 3.12.1.
    code = (
        "import cProfile, importlib, runpy, sys\n"
        "from airflow.sdk import DAG, BaseOperator, task\n"
        "before = set(sys.modules)\n"
        "def parse():\n"
        f"    [importlib.import_module(name) for name in {[name for name in PARSED if name not in IF_USED]!r}]\n"
        "    runpy.run_path('dags/summarise_table.py')\n"
        "profile = cProfile.Profile()\n"
        "profile.runcall(parse)\n"
        "calls = sum(entry.callcount for entry in profile.getstats())\n"
        "added = set(sys.modules) - before\n"
        "print(calls, sum(not name.startswith('airflow_provider_llmbeam') for name in added))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    calls, foreign = map(int, ended.stdout.splitlines()[-1].split())
    print(f"{calls} calls, {foreign} modules of others")
    assert calls < 430_000, "seen on Python 3.11: 420,855, most of them for pydantic models"
    assert foreign < 42, "seen on Python 3.11: 36, with those of the Dag"
