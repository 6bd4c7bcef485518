"""Tests that the wheel of the workers requires exactly what the code in it needs."""

from __future__ import annotations

import ast
import csv
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import airflow_provider_llmbeam
from airflow_provider_llmbeam.pipeline.launch.worker_package import (
    PRIVACY_REQUIREMENTS,
    REQUIREMENTS,
    SINK_REQUIREMENTS,
    TFIDF_REQUIREMENTS,
)

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(airflow_provider_llmbeam.__file__).parent
BEAM = "apache-beam"
#: `pymilvus` requires the first for a server that is a local file, which no worker can open; with the second a
#: resident worker serves its metrics.
LOCAL_ONLY = {"milvus-lite", "prometheus-client"}
#: fastavro imports it when it reads a file of the codec snappy.
FASTAVRO_IMPORTS = {"cramjam"}
#: What scikit-learn requires, and is imported beside it.
WITH_SCIKIT_LEARN = {"scipy", "threadpoolctl"}


def imports():
    """Returns the names that each import statement may load: both `a` and `a.b` for `from a import b`."""
    for ring in ("spec", "transport", "engine", "providers", "flink", "pipeline"):
        for path in (PACKAGE / ring).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    yield from ([alias.name] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    yield [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]


def recorded(distribution):
    """Returns the paths of its files; `Distribution.files` would check all 60,000 of them on the disk."""
    return [row[0] for row in csv.reader((distribution.read_text("RECORD") or "").splitlines())]


@pytest.fixture(scope="module")
def imported():
    """Returns the distributions that these packages import."""
    owners = {}
    for one in distributions():
        owners |= dict.fromkeys(recorded(one), canonicalize_name(one.name))
    found = set(FASTAVRO_IMPORTS)
    for modules in imports():
        if modules[0].partition(".")[0] in (*sys.stdlib_module_names, "airflow_provider_llmbeam"):
            continue
        files = [f"{module.replace('.', '/')}{end}" for module in modules for end in (".py", "/__init__.py")]
        owning = {owners[file] for file in files if file in owners}
        assert owning, f"{modules} is of no distribution"
        found |= owning
    return found


def names(requirements):
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def test_the_wheel_requires_what_its_code_imports_and_beam_does_not_bring(imported):
    (beam,) = distributions(name=BEAM)
    brought = {
        canonicalize_name(requirement.name)
        for requirement in map(Requirement, beam.requires)
        if requirement.marker is None or requirement.marker.evaluate({"extra": "gcp"})
    }
    of_sinks = names(line for lines in SINK_REQUIREMENTS.values() for line in lines)
    assert of_sinks <= imported
    of_privacy = names(PRIVACY_REQUIREMENTS)
    assert of_privacy <= imported
    of_classifiers = names(TFIDF_REQUIREMENTS)
    assert of_classifiers <= imported
    own = names(REQUIREMENTS)
    # Packages whose objects are pickled or passed to Arrow need one version on both sides, even those of Beam.
    assert (
        imported - brought - of_sinks - of_privacy - of_classifiers - WITH_SCIKIT_LEARN - LOCAL_ONLY - {BEAM}
        <= own
        <= imported
    )
    assert "google-cloud-secret-manager" in brought, "else the workers could not read a secret"


def test_the_wheel_requires_what_the_project_depends_on_and_the_three_packages_import(imported):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    depends = names(project["dependencies"])
    assert names(REQUIREMENTS) == {name for name in depends & imported if name != BEAM}
    extras = ("postgres", "milvus", "kafka")
    optional = names(line for extra in extras for line in project["optional-dependencies"][extra])
    assert names(line for lines in SINK_REQUIREMENTS.values() for line in lines) == optional - LOCAL_ONLY
