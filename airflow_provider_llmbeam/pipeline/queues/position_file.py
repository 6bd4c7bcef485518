"""The file with the position of a job and the ranges of its runs."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.queues.position import Position, Range
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.spec.job import JobSpec


def position_uri(spec: JobSpec) -> str:
    """Returns the address of the position of a job, which all its runs share."""
    return f"{spec.paths.shared_uri}queues/{identity(spec.owner or spec.name, spec.deployment)}.json"


def run_of(spec: JobSpec) -> str:
    """Returns the name of a run: that of the Dag run; without Airflow all runs have one name."""
    return spec.airflow_run.run_id if spec.airflow_run is not None else ""


def read_position(spec: JobSpec) -> Position:
    """Reads the position of a job.

    Raises:
        JobSpecError: The file is not valid.
    """
    return _decoded(spec, storage.read_if_exists(position_uri(spec)))


def begin(spec: JobSpec, taken: Range, cluster: str | None) -> None:
    """Records the range of a run, before any of its messages is read."""
    storage.change(
        position_uri(spec), lambda old: _encoded(_decoded(spec, old).begun(run_of(spec), taken, cluster))
    )


def check_next(spec: JobSpec) -> None:
    """Checks, before the answers are published, that no other run has published their messages.

    Raises:
        JobFailedError: Another run has.
    """
    position = read_position(spec)
    taken = position.runs.get(run_of(spec))
    if taken is None or not position.is_next(taken):
        raise JobFailedError(
            f"Another run of job {spec.name!r} has published messages of this one meanwhile: the position in "
            f"{position_uri(spec)!r} has moved. Nothing was published; the answers are in the journal. Let one "
            "run at a time read the topics, with `max_active_runs=1`."
        )


def messages_left(spec: JobSpec) -> int | None:
    """Returns the number of offsets that a run has left to the next one; `None` if it is not known."""
    taken = read_position(spec).runs.get(run_of(spec))
    return None if taken is None else taken.left


def advance(spec: JobSpec) -> None:
    """Moves the position behind the messages of a run, whose answers are published."""
    run = run_of(spec)
    storage.change(
        position_uri(spec),
        lambda old: _encoded(_decoded(spec, old).published(run, keeps=spec.airflow_run is not None)),
    )


def _encoded(position: Position) -> bytes:
    return position.model_dump_json().encode()


def _decoded(spec: JobSpec, content: Any) -> Position:
    if content is None:
        return Position()
    try:
        return Position.model_validate_json(content)
    except ValidationError as error:
        raise JobSpecError(
            f"The position of job {spec.name!r} in {position_uri(spec)!r} is not valid: "
            f"{error.errors()[0]['msg']}. Restore the file, or delete it: the job then begins as in its first "
            "run."
        ) from None
