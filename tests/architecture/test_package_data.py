"""Tests that data files are part of the package, also if it was installed from a wheel."""

from __future__ import annotations

from importlib.resources import files

PACKAGE = files("airflow_provider_llmbeam")


def test_the_package_ships_its_py_typed_marker():
    assert (PACKAGE / "py.typed").is_file()


def test_the_pipeline_ships_the_templates_of_its_pages():
    for name in ("page", "report", "estimate", "evaluation", "comparison"):
        assert (PACKAGE / "pipeline" / "reporting" / f"{name}.html.jinja").is_file()
