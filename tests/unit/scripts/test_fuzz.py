from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
PROPERTIES = """
import pytest
from hypothesis import given, settings, strategies as st

@pytest.mark.fuzz
@settings(database=None)
@given(st.integers())
def test_small(n):
    assert n < 50

@pytest.mark.fuzz
@given(st.integers())
def test_sum(n):
    assert n + n == 2 * n

def test_other():
    raise AssertionError("is no property")
"""
FUZZ = """
import sys
sys.path.insert(0, sys.argv[2])
import fuzz, pytest
arguments = ["-m", "fuzz", "-p", "no:cacheprovider", "-o", "markers=fuzz", sys.argv[1]]
sys.exit(pytest.main(arguments, plugins=[fuzz.Fuzzing(10, iter(range(100)).__next__)]))
"""


@pytest.mark.full
def test_properties_are_repeated_until_the_time_is_over_and_one_that_fails_is_shown_once(tmp_path):
    path = tmp_path / "test_properties.py"
    path.write_text(PROPERTIES)
    command = [sys.executable, "-c", FUZZ, str(path), str(SCRIPTS)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    assert len(re.findall(r"^E +n=50,$", found.stdout, re.MULTILINE)) == 1, found.stdout
    assert re.search(r"FAILED .*::test_small\n", found.stdout)
    assert "Again: scripts/test -n 0 'test_properties.py::test_small'" in found.stdout
    assert "examples in 3 rounds" in found.stdout
    assert re.search(r" 300 +3.0 s  ok +test_properties.py::test_sum\n", found.stdout)
    assert "is no property" not in found.stdout
