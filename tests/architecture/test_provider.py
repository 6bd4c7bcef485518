"""Tests of the metadata that Airflow discovers. A wrong package name would break every `airflow` command."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from importlib.metadata import distribution, entry_points
from importlib.resources import files
from pathlib import Path

import jsonschema

import airflow_provider_llmbeam
from airflow_provider_llmbeam.provider_info import get_provider_info

INFO = get_provider_info()


def airflow(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("airflow")), *arguments]
    environment = {**os.environ, "COLUMNS": "300"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def test_the_package_name_is_the_normalised_name_of_the_distribution():
    normalised = re.sub(r"[-_.]+", "-", distribution("airflow-provider-llmbeam").name).lower()
    assert INFO["package-name"] == normalised


def test_the_entry_point_returns_the_provider_info():
    (found,) = [
        point
        for point in entry_points(group="apache_airflow_provider")
        if point.module.startswith("airflow_provider_llmbeam")
    ]
    assert found.load()() == INFO


def test_the_provider_info_matches_the_schema_of_airflow():
    schema = json.loads((files("airflow") / "provider_info.schema.json").read_text())
    jsonschema.validate(INFO | {"versions": [airflow_provider_llmbeam.__version__]}, schema)


def test_every_class_in_the_provider_info_exists():
    named = re.findall(r"airflow_provider_llmbeam[\w.]+", json.dumps(INFO))
    for dotted in named:
        module, _, attribute = dotted.rpartition(".")
        try:
            importlib.import_module(dotted)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), dotted


def test_airflow_lists_the_provider_and_its_connection_type():
    assert "airflow-provider-llmbeam" in airflow("providers", "list")
    assert "llmbeam" in airflow("providers", "hooks")


def test_the_hook_matches_the_connection_type_of_the_provider_info():
    from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook

    (connection,) = INFO["connection-types"]
    assert connection["connection-type"] == LLMBeamHook.conn_type
    assert connection["hook-name"] == LLMBeamHook.hook_name
    assert set(connection["conn-fields"]) == {"project", "location", "usage_tier"}
