"""Creates the virtual environment of each peer, and finds the interpreter of each contender."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.contenders.contender import Contender

ROOT = Path(__file__).parent.parent
#: Environment variable for another directory of the virtual environments, e.g. if the checkout is read-only.
HOME_VARIABLE = "LLMBEAM_BENCH_HOME"
PLOT_NAME = "plot"
PLOT_REQUIREMENTS = ("matplotlib==3.10.7",)


class NotInstalledError(Exception):
    """A virtual environment is missing or could not be created."""


def home() -> Path:
    """Returns the directory of the virtual environments."""
    return Path(os.environ.get(HOME_VARIABLE) or ROOT / ".bench")


def python_of(contender: Contender) -> Path:
    """Returns the interpreter of a contender.

    Raises:
        NotInstalledError: The virtual environment of the contender has not been created.
    """
    if not contender.is_peer:
        return Path(sys.executable)
    if not _is_created(contender.environment_name, contender.requirements):
        raise NotInstalledError("not installed; `scripts/bench --peers` installs it")
    return _python(contender.environment_name)


def plot_python() -> Path:
    """Returns an interpreter that has matplotlib, creating its environment if necessary.

    Raises:
        NotInstalledError: The environment could not be created.
    """
    return _ensure_created(PLOT_NAME, PLOT_REQUIREMENTS)


def create(contenders: Iterable[Contender]) -> dict[str, str]:
    """Creates the missing virtual environments.

    Returns:
        The reasons why environments could not be created, by name of the contender.
    """
    failures = {}
    for contender in contenders:
        if contender.is_peer:
            try:
                _ensure_created(contender.environment_name, contender.requirements)
            except NotInstalledError as error:
                failures[contender.name] = str(error)
    return failures


def version_of(contender: Contender) -> str:
    """Returns the installed version of a contender; "" if it is not installed."""
    code = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    try:
        command = [str(python_of(contender)), "-c", code, contender.distribution]
    except NotInstalledError:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _python(name: str) -> Path:
    return home() / name / "bin" / "python"


def _is_created(name: str, requirements: tuple[str, ...]) -> bool:
    marker = home() / name / ".made-from"
    return marker.exists() and marker.read_text() == json.dumps(requirements)


def _ensure_created(name: str, requirements: tuple[str, ...]) -> Path:
    if not _is_created(name, requirements):
        sys.stderr.write(f"Creating the virtual environment of {name} ...\n")
        home().mkdir(parents=True, exist_ok=True)
        uv = Path(sys.executable).with_name("uv")
        python = _python(name)
        _run([str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(home() / name)])
        _run([str(uv), "pip", "install", "--quiet", "--python", str(python), *requirements])
        (home() / name / ".made-from").write_text(json.dumps(requirements))
    return _python(name)


def _run(command: list[str]) -> None:
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotInstalledError(f"could not be installed: {error}") from error
    if completed.returncode:
        last = (completed.stderr.strip().splitlines() or ["no message"])[-1]
        raise NotInstalledError(f"could not be installed: {last.strip()[:200]}")
