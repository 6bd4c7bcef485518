"""What tests ask about processes that they start."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
from waiting import until

T = TypeVar("T")

#: How often tests that kill processes at random moments do so; CONTRIBUTING.md says when to set it.
KILLS = int(os.environ.get("LLMBEAM_KILLS", "2"))


def until_job(child: subprocess.Popen[Any], condition: Callable[[], T]) -> T:
    """Polls, often, until a condition is true, while a process that brings it about is alive.

    Raises:
        AssertionError: The process ended first.
        TimeoutError: The condition was not met within the timeout.
    """

    def met() -> T:
        assert child.poll() is None, "the job ended too early"
        return condition()

    return until(met, pause_seconds=0.002)


def has_ended(pid: int) -> bool:
    """Returns whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def job_processes(ancestor: psutil.Process) -> list[psutil.Process]:
    """Returns the jobs among the descendants of a process that are alive; see `tests/forking.py`."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in ancestor.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # or a zombie
                if "airflow_provider_llmbeam.pipeline" in process.cmdline():
                    found.append(process)
    return found


def forked_jobs() -> list[psutil.Process]:
    """Returns the forks that run the jobs of this process, those on the emulated Dataflow included."""
    forks = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # or a zombie
            if "fork_server.py" in " ".join(child.cmdline()):
                forks += child.children()
    return forks
