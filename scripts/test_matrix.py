"""Runs the tests on each supported Airflow and Python, each pair in an environment of its own.

    scripts/test-matrix                        every pair, the loop of scripts/test
    scripts/test-matrix --full                 every pair, every test
    scripts/test-matrix 3.1 3.12               Airflow 3.1 on Python 3.12
    scripts/test-matrix 3.2 tests/unit -k job  Airflow 3.2 on every Python; the rest goes to pytest

uv finds the interpreters: on the PATH (`python3.12`), in UV_PYTHON_SEARCH_PATH, or where uv itself installed them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
#: Pins of the newest Airflow of each line. The pins of an older line result from this command, which starts from
#: `constraints.txt` so that only the requirements of that Airflow differ:
#: `cp constraints.txt constraints/airflow-3.1.txt && echo 'apache-airflow==3.1.*' | uv pip compile --universal`
#: `--python-version 3.11 --extra dev --no-header --no-annotate -o constraints/airflow-3.1.txt pyproject.toml -`
#: For 3.2 with `svcs<26` besides: svcs 26 removes the registry of an application whose lifespan is collected as
#: garbage, and `dag.test` of Airflow 3.2.2 keeps no reference to it.
CONSTRAINTS = {
    "3.1": "constraints/airflow-3.1.txt",
    "3.2": "constraints/airflow-3.2.txt",
    "3.3": "constraints.txt",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One Airflow line on one Python."""

    airflow: str
    python: str

    @property
    def environment(self) -> Path:
        """Folder of the virtual environment."""
        return ROOT / f".venv-airflow-{self.airflow}-python-{self.python}"

    @property
    def constraints(self) -> Path:
        """File of the pins."""
        return ROOT / CONSTRAINTS[self.airflow]


@dataclass(kw_only=True)
class Result:
    """Test results of a cell.

    Attributes:
        passed: Number of tests.
        failed: Number of tests, errors included.
        not_supported: Number of skipped tests by their reason.
        minutes: Wall-clock time of the tests.
        error: Reason why there is no report, or pytest's exit status if it is neither 0 nor 1; empty otherwise.
    """

    passed: int = 0
    failed: int = 0
    not_supported: Counter[str] = field(default_factory=Counter)
    minutes: float = 0
    error: str = ""

    @property
    def is_good(self) -> bool:
        """Whether tests ran and none failed."""
        return not (self.failed or self.error) and self.passed > 0


def main(arguments: Sequence[str]) -> int:
    """Runs the cells that the arguments select; returns the exit status."""
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    cells, pytest_arguments = selected(arguments)
    results: dict[Cell, Result] = {}
    for cell in cells:
        print(f"== Airflow {cell.airflow}, Python {cell.python}", flush=True)
        try:
            make_environment(cell)
            results[cell] = run_tests(cell, pytest_arguments)
        except subprocess.CalledProcessError as error:
            results[cell] = Result(error=f"no environment: {error.cmd[0]} exited with {error.returncode}")
    print(table(results))
    return 0 if all(result.is_good for result in results.values()) else 1


def selected(arguments: Sequence[str]) -> tuple[list[Cell], list[str]]:
    """Returns the cells that the versions among the arguments select, and the arguments for pytest.

    Raises:
        SystemExit: A version is not supported.
    """
    versions = {argument for argument in arguments if re.fullmatch(r"\d+\.\d+", argument)}
    if unknown := versions - {*CONSTRAINTS, *PYTHONS}:
        supported = f"Airflow {', '.join(CONSTRAINTS)}; Python {', '.join(PYTHONS)}"
        raise SystemExit(
            f"scripts/test-matrix: {', '.join(sorted(unknown))} is not supported. Supported: {supported}"
        )
    cells = [
        Cell(airflow=airflow, python=python)
        for airflow in CONSTRAINTS
        if airflow in versions or not versions & set(CONSTRAINTS)
        for python in PYTHONS
        if python in versions or not versions & set(PYTHONS)
    ]
    return cells, [argument for argument in arguments if argument not in versions]


def make_environment(cell: Cell) -> None:
    """Creates the environment of a cell, unless it is up to date.

    Raises:
        subprocess.CalledProcessError: No interpreter was found, or a package could not be installed.
    """
    made_from = cell.environment / ".made-from"
    files = (ROOT / "pyproject.toml", ROOT / "sandbox" / "pyproject.toml", cell.constraints)
    wanted = "".join(file.read_text() for file in files)
    if made_from.exists() and made_from.read_text() == wanted:
        return
    uv = str(Path(sys.executable).with_name("uv"))
    make = [uv, "venv", "--quiet", "--clear", "--seed", "--python", cell.python, str(cell.environment)]
    subprocess.run(make, check=True, cwd=ROOT, env={"UV_SYSTEM_CERTS": "true", **os.environ})
    install = ["scripts/install", str(cell.environment / "bin" / "python"), "-c", str(cell.constraints)]
    subprocess.run([*install, "-e", ".[dev]", "-e", "./sandbox"], check=True, cwd=ROOT)
    made_from.write_text(wanted)


def run_tests(cell: Cell, pytest_arguments: Sequence[str]) -> Result:
    """Runs pytest in the environment of a cell."""
    report = cell.environment / "report.xml"
    report.unlink(missing_ok=True)
    python = str(cell.environment / "bin" / "python")
    # Without bytecode, the imports of every Airflow process take seconds longer.
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    workers = ["-n", "3", "--dist", "loadgroup", "--no-loadscope-reorder"]  # as in scripts/test
    command = [python, "-m", "pytest", *workers, f"--junitxml={report}", *pytest_arguments]
    begun = time.monotonic()
    ended = subprocess.run(command, cwd=ROOT, check=False, env=settings)
    minutes = (time.monotonic() - begun) / 60
    if not report.exists():
        return Result(error=f"pytest exited with {ended.returncode}", minutes=minutes)
    result = read_report(report.read_text())
    result.minutes = minutes
    if ended.returncode not in (0, 1):
        result.error = f"pytest exited with {ended.returncode}"
    return result


def read_report(report: str) -> Result:
    """Returns the counts of a report in JUnit's format, as pytest writes it."""
    result = Result()
    for case in ElementTree.fromstring(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        elif (skipped := case.find("skipped")) is not None:
            result.not_supported[skipped.get("message", "no reason")] += 1
        else:
            result.passed += 1
    return result


def table(results: dict[Cell, Result]) -> str:
    """Returns the results as readable lines: one per cell, then the reasons of unsupported tests."""
    lines = ["", "Airflow  Python  passed  failed  not supported  minutes"]
    reasons: dict[str, list[str]] = {}
    for cell, result in results.items():
        counts = f"{result.passed:>6}  {result.failed:>6}  {result.not_supported.total():>13}"
        lines.append(
            f"{cell.airflow:<7}  {cell.python:<6}  {counts}  {result.minutes:>7.1f}  {result.error}".rstrip()
        )
        for reason, count in result.not_supported.items():
            reasons.setdefault(reason, []).append(f"{count} on {cell.airflow} x {cell.python}")
    if reasons:
        lines += ["", "Not supported:", *(f"- {reason} ({', '.join(cells)})" for reason, cells in reasons.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
