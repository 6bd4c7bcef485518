"""Tests that the README and the map in CONTRIBUTING.md are correct."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider_llmbeam

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(airflow_provider_llmbeam.__file__).parent
MAP = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things live")[2]


def blocks_of_python(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


def test_the_dag_example_equals_its_file():
    (shown,) = blocks_of_python(ROOT / "README.md")
    assert shown == (ROOT / "dags" / "summarise_table.py").read_text()
    assert len(shown.splitlines()) <= 24


def test_the_custom_pipeline_example_runs(tmp_path):
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.testing.util import assert_that, equal_to

    shown, *_ = blocks_of_python(ROOT / "docs" / "beam.md")
    own = shown.replace(
        'GeminiModel(name="gemini-3.5-flash-lite", project="my-project")', "EchoModel(type='echo')"
    )
    own = own.replace("import GeminiModel,", "import EchoModel,").replace("gs://my-bucket", str(tmp_path))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        scope = {"prompts": pipeline | beam.Create(["a", "b"])}
        exec(own, scope)
        assert_that(scope["predictions"] | beam.Map(lambda result: result.inference.text), equal_to(["a", "b"]))


@pytest.mark.parametrize("path", re.findall(r"^\| `([^`]+)` \|", MAP, re.MULTILINE))
def test_every_path_of_the_map_exists(path):
    # The package may be installed from a wheel, outside this folder.
    assert any((folder / path).exists() for folder in (ROOT, PACKAGE.parent))


def test_every_directory_of_the_package_is_in_the_map():
    rings = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {ring for ring in rings if f"airflow_provider_llmbeam/{ring}/`" not in MAP} == set()


def test_the_demo_command_exists_and_has_a_help_page():
    """Its program is run by this interpreter: the script makes `.venv` anew where `pyproject.toml` has changed."""
    script = (ROOT / "scripts" / "demo").read_text()
    assert script.endswith('exec .venv/bin/python scripts/demo.py "$@"\n')
    command = [sys.executable, ROOT / "scripts" / "demo.py", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--keep" in ended.stdout
    assert "--model-url" in ended.stdout
