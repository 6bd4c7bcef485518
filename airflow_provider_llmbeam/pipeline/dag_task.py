"""The job of a task of a Dag file, for the command line: Airflow parses the file in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam import exceptions
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.job import JobSpec

#: Variable with the interpreter of the environment of Airflow; without it, that of this process.
PYTHON_VARIABLE = "LLMBEAM_AIRFLOW_PYTHON"


@dataclass(frozen=True, slots=True, kw_only=True)
class DagTask:
    """What a task asks of a job.

    Attributes:
        spec: The job, as a run of the task would have it.
        environment: Variables with its secrets.
        given: What the step is asked for, as plain data; `None` if the task does not say it.
        run_id: Id of the Dag run.
        is_known: Whether that run exists.
    """

    spec: JobSpec
    environment: Mapping[str, str]
    given: Mapping[str, Any] | None
    run_id: str
    is_known: bool


@contextmanager
def open_dag_task(address: str, step: str, *, when: str | None, map_index: int | None) -> Iterator[DagTask]:
    """Provides the job of a task; the credentials of its connections are valid in the body.

    Args:
        address: `FILE::TASK`, or a local file with the JSON of a job whose rows Airflow stages.
        step: Name of the step.
        when: Day, time or id of the Dag run; `None`: the newest run.
        map_index: Index of an instance of a mapped task.

    Raises:
        LLMBeamError: The error class is the one that the child reported, or `JobSpecError` if it reported none.
    """
    reading, writing = os.pipe()
    python = os.environ.get(PYTHON_VARIABLE) or sys.executable
    options = {"date": when, "map-index": map_index, "fd": writing, "step": step}
    command = [
        *(python, "-m", "airflow_provider_llmbeam.operators.dag_task", address),
        *(f"--{name}={value}" for name, value in options.items() if value is not None),
    ]
    with tempfile.TemporaryFile() as log, os.fdopen(reading) as result:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, pass_fds=(writing,)
            )
        except OSError as error:
            raise JobSpecError(f"`{PYTHON_VARIABLE}`: {python!r} cannot be started: {error.strerror}.") from error
        finally:
            os.close(writing)
        try:
            if not (content := result.read()):
                child.wait()
                log.seek(0)
                raise JobSpecError(_failure(address, log.read().decode(errors="replace"), python))
            found = json.loads(content)
            if "error" in found:
                raise exceptions.error_class(found["error"]["type"], JobSpecError)(found["error"]["message"])
            yield DagTask(**{**found, "spec": JobSpec.parse(found["spec"])})
        except BaseException:
            child.terminate()
            raise
        finally:
            child.communicate()


def _failure(address: str, log: str, python: str) -> str:
    """Returns why there is no job."""
    last = (log.strip().splitlines() or ["no reason was given"])[-1]
    hint = ""
    if "ModuleNotFoundError" in last:
        hint = f" Name the Python of the environment of Airflow in {PYTHON_VARIABLE}; it was {python!r}."
    task = "read the Dag file" if "::" in address else "read `source.query` through `source.conn_id`"
    return f"Airflow could not {task}: {last.rstrip('.')}.{hint}"
