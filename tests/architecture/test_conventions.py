"""Tests of the conventions that the maintainers agreed on."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from airflow.sdk import DAG, BaseOperator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import airflow_provider_llmbeam
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(airflow_provider_llmbeam.__file__).parent
PINS = ("constraints.txt", "constraints/airflow-3.1.txt", "constraints/airflow-3.2.txt")


def tracked_texts():
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    for name in names.splitlines():
        path = ROOT / name
        if path.is_file():
            yield name, path.read_text(errors="replace")


def test_every_template_field_is_an_attribute():
    with DAG("fields", schedule=None):
        operator = RunInferenceOperator(
            task_id="t",
            source={"uri": "a.csv", "key": ["id"]},
            prompt={"template": "{{ row.t }}"},
            model={"type": "echo"},
            sink={"uri": "out"},
        )
    assert all(hasattr(operator, field) for field in operator.template_fields)
    assert "prompt" not in operator.template_fields, "Airflow must not render the template of the rows"
    assert isinstance(operator, BaseOperator)


def test_a_module_is_named_after_its_subject():
    assert not [path for path in PACKAGE.rglob("*.py") if re.search(r"util|helper|^(common|misc)$", path.stem)]


@pytest.mark.parametrize("file", PINS)
def test_the_pins_include_every_package_that_the_tests_require(file):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {
        canonicalize_name(Requirement(requirement).name)
        for requirement in project["dependencies"] + project["optional-dependencies"]["dev"]
    }
    assert asked - {line.partition("==")[0] for line in (ROOT / file).read_text().splitlines()} == set()


@pytest.mark.parametrize("file", PINS)
def test_the_pins_name_no_index(file):
    pins = (ROOT / file).read_text()
    assert "://" not in pins
    assert "--" not in pins


def test_the_file_with_hashes_has_the_pins_of_the_other_and_names_no_index():
    """`uv pip compile constraints.txt` with the options in CONTRIBUTING.md makes it anew."""
    lines = (ROOT / "constraints/hashes.txt").read_text().replace(" \\\n    ", " ").splitlines()
    pinned = {line.partition(" --hash=")[0] for line in lines}
    assert pinned ^ set((ROOT / "constraints.txt").read_text().splitlines()) == set()
    assert [line for line in lines if not re.fullmatch(r"[^:]+( --hash=sha256:[0-9a-f]{64})+", line)] == []
