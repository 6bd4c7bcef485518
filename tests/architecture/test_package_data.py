"""Tests that data files are part of the package, also if it was installed from a wheel."""

from __future__ import annotations

from importlib.resources import files

PACKAGE = files("airflow_provider_llmbeam")


def test_the_package_ships_its_py_typed_marker():
    assert (PACKAGE / "py.typed").is_file()


def test_the_pipeline_ships_the_template_of_the_report():
    assert (PACKAGE / "pipeline" / "reporting" / "report.html.jinja").is_file()
