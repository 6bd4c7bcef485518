"""Tests that the loop keeps each promise, and that the planted faults fit the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import airflow_provider_llmbeam
from tests.planted_faults import PLANTED_FAULTS

ROOT = Path(__file__).resolve().parents[2]
#: The package may be installed from a wheel, outside this folder.
PACKAGE = Path(airflow_provider_llmbeam.__file__).parent
MODULES = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


def module_marks(text):
    """Returns the assignment of `pytestmark`, which marks each test of a module."""
    found = re.search(r"^pytestmark = (\[.*?^\]|\[.*?\]$|.*?$)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


@pytest.mark.parametrize("promise", range(1, 6))
def test_each_promise_has_a_module_in_the_loop(promise):
    keeps = [
        path.name
        for path, text in MODULES.items()
        if f"mark.promise({promise})" in module_marks(text) and "mark.full" not in module_marks(text)
    ]
    assert keeps


@pytest.mark.parametrize("fault", PLANTED_FAULTS.values(), ids=PLANTED_FAULTS)
def test_a_planted_fault_has_one_place(fault):
    assert (PACKAGE / fault.file).read_text().count(fault.old) == 1


def test_three_faults_are_planted_in_each_area():
    areas = [fault.area for fault in PLANTED_FAULTS.values()]
    assert {area: number for area in areas if (number := areas.count(area)) < 3} == {}
