"""The files beside the modules are part of the package, also where it was installed from a wheel."""

from __future__ import annotations

from importlib.resources import files

PACKAGE = files("airflow_provider_llmbeam")


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file()


def test_the_sandbox_ships_the_page_of_what_it_does_not_emulate():
    assert (PACKAGE / "sandbox" / "FIDELITY.md").read_text().startswith("#")
