"""Who may import whom, and what a Dag file pays for our operators."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import airflow_provider_llmbeam

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("apache_beam", "google.genai", "google.cloud.aiplatform", "google.auth", "pyarrow", "pandas", "aiohttp")
MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(airflow_provider_llmbeam.__path__, "airflow_provider_llmbeam.")
    if not found.name.endswith("__main__")
)
PARSED = [
    name
    for name in MODULES
    if name.split(".")[1] in ("operators", "sensors", "triggers", "links", "provider_info")
]
WITHOUT_AIRFLOW = [name for name in MODULES if name.split(".")[1] in ("spec", "engine", "pipeline", "sandbox")]


def loaded_by(modules: list[str], among: tuple[str, ...]) -> list[str]:
    """Which of `among` are loaded once `modules` are."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(json.dumps([name for name in {among!r} if name in sys.modules]))"
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
    assert {name.split(".")[1] for name in PARSED} >= {"links", "operators", "provider_info", "triggers"}
    before = loaded_by(["airflow.sdk"], HEAVY)
    assert loaded_by(["airflow.sdk", *PARSED], HEAVY) == before


def test_the_hook_of_dataflow_loads_no_client_before_it_is_asked():
    clients = ("google.cloud.dataflow_v1beta3", "google.cloud.storage", "apache_beam")
    assert loaded_by(["airflow_provider_llmbeam.hooks.dataflow"], clients) == []


def test_the_hooks_of_endpoints_load_no_client_before_they_are_asked():
    clients = ("google.cloud.aiplatform_v1", "google.cloud.run_v2")
    hooks = [f"airflow_provider_llmbeam.hooks.{name}" for name in ("endpoint", "cloud_run", "site")]
    assert loaded_by(hooks, clients) == []


def test_the_provider_info_loads_nothing_but_itself():
    assert loaded_by(["airflow_provider_llmbeam.provider_info"], ("airflow", "pydantic", *HEAVY)) == []


def test_parsing_costs_under_a_fifth_of_a_second_on_top_of_airflow():
    # CPU time, the best of three: what the machine does besides does not count.
    code = (
        "import importlib, time, airflow.sdk\n"
        "start = time.process_time()\n"
        f"for name in {PARSED!r}: importlib.import_module(name)\n"
        "print(time.process_time() - start)"
    )
    command = [sys.executable, "-c", code]
    ended = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(process.stdout.splitlines()[-1]) for process in ended) < 0.2
