from __future__ import annotations

import subprocess

import pytest
import test_matrix
from test_matrix import Cell, Result, main, read_report, selected, table

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase name="a"/>
<testcase name="b"/>
<testcase name="c"><failure message="no"/></testcase>
<testcase name="d"><error message="no"/></testcase>
<testcase name="e"><skipped message="below 3.3"/></testcase>
<testcase name="f"><skipped message="below 3.3"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("arguments", "cells"),
    [
        ([], [(airflow, python) for airflow in ("3.1", "3.2", "3.3") for python in ("3.11", "3.12", "3.13")]),
        (["3.1", "3.12"], [("3.1", "3.12")]),
        (["3.2"], [("3.2", "3.11"), ("3.2", "3.12"), ("3.2", "3.13")]),
        (["3.13", "3.1", "3.3"], [("3.1", "3.13"), ("3.3", "3.13")]),
    ],
)
def test_versions_select_the_cells(arguments, cells):
    assert [(cell.airflow, cell.python) for cell in selected(arguments)[0]] == cells


def test_the_other_arguments_go_to_pytest():
    assert selected(["3.1", "tests/unit", "-k", "job"])[1] == ["tests/unit", "-k", "job"]


def test_an_unsupported_version_is_refused():
    with pytest.raises(
        SystemExit, match=r"2\.11 is not supported\. Supported: Airflow 3\.1, 3\.2, 3\.3; Python 3\.11"
    ):
        selected(["2.11"])


@pytest.mark.parametrize("airflow", test_matrix.CONSTRAINTS)
def test_a_cell_uses_the_pins_of_its_airflow_version(airflow):
    assert f"\napache-airflow-core=={airflow}." in Cell(airflow=airflow, python="3.11").constraints.read_text()


def test_a_report_is_counted():
    result = read_report(REPORT)
    assert (result.passed, result.failed, result.not_supported) == (2, 2, {"below 3.3": 2})


@pytest.mark.parametrize(
    ("result", "is_good"),
    [
        (Result(passed=1), True),
        (Result(passed=1, failed=1), False),
        (Result(), False),
        (Result(passed=1, error="pytest exited with 2"), False),
    ],
)
def test_a_cell_passes_if_tests_ran_and_none_failed(result, is_good):
    assert result.is_good is is_good


def test_the_table_has_a_line_per_cell_and_the_reasons():
    result = read_report(REPORT)
    result.minutes = 1.5
    lines = table({Cell(airflow="3.1", python="3.11"): result}).splitlines()
    assert lines[2].split() == ["3.1", "3.11", "2", "2", "2", "1.5"]
    assert lines[-1] == "- below 3.3 (2 on 3.1 x 3.11)"


@pytest.mark.parametrize(("failures", "status"), [("", 0), ('<testcase name="g"><failure/></testcase>', 1)])
def test_a_failure_in_any_cell_fails_the_matrix(failures, status, monkeypatch, capsys):
    reports = {"3.1": "", "3.2": failures, "3.3": ""}

    def run_tests(cell, arguments):
        return read_report(f'<testsuite><testcase name="a"/>{reports[cell.airflow]}</testsuite>')

    monkeypatch.setattr(test_matrix, "make_environment", lambda cell: None)
    monkeypatch.setattr(test_matrix, "run_tests", run_tests)
    assert main(["3.12"]) == status
    assert capsys.readouterr().out.count("3.12") == 6


def test_a_cell_without_an_interpreter_fails_and_the_others_run(monkeypatch, capsys):
    def make_environment(cell):
        if cell.python == "3.13":
            raise subprocess.CalledProcessError(2, ["uv", "venv"])

    monkeypatch.setattr(test_matrix, "make_environment", make_environment)
    monkeypatch.setattr(test_matrix, "run_tests", lambda cell, arguments: Result(passed=1))
    assert main(["3.1"]) == 1
    assert "no environment: uv exited with 2" in capsys.readouterr().out
