"""The owner of a files sink: the one job that may replace its answers.

It is recorded below the sink before anything is sent, and only if no other job is, see `storage.change`. On other
filesystems than this machine's and Cloud Storage, the later one of two jobs that start within the same moment owns
the sink, and the earlier one fails when it publishes.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.sink import FilesSink

_MAP_INDEX = re.compile(r"\[\d+\]$")


@dataclass(frozen=True, slots=True)
class Owner:
    """What a job is called from run to run.

    Attributes:
        job: Dag, task and map index, or the name of a job without Airflow.
        deployment: Airflow deployment; empty without one.
    """

    job: str
    deployment: str

    @classmethod
    def of(cls, spec: JobSpec) -> Owner:
        """Returns the identity of a job for its sink."""
        return cls(spec.owner or spec.name, spec.deployment)


def refuse_other_owner(spec: JobSpec) -> None:
    """Checks that no other job owns the sink, without writing.

    Raises:
        JobSpecError: Another job owns it; the message has both names.
    """
    if spec.paths.owner_uri is not None:
        _refuse_other(spec, _parse(storage.read_if_exists(spec.paths.owner_uri)))


def claim(spec: JobSpec) -> None:
    """Records the job as the owner of its sink, unless there is one; a job that merges leaves another one there.

    Raises:
        JobSpecError: Another job owns it; the message has both names.
    """
    uri = spec.paths.owner_uri
    if uri is None:
        return
    own, takes_over = Owner.of(spec), getattr(spec.sink, "on_existing", None) == "take_over"

    def claimed(content: bytes | None) -> bytes:
        found = _parse(content)
        if content is None or found is None or (takes_over and found != own):
            since = datetime.now(UTC).isoformat(timespec="seconds")
            return json.dumps({**asdict(own), "since": since}).encode()
        _refuse_other(spec, found)
        return content

    storage.change(uri, claimed)


def release(spec: JobSpec) -> None:
    """Forgets the owner of a sink without answers, if it is this job, which has had nothing to publish."""
    uri = spec.paths.owner_uri
    if (
        uri is not None
        and _parse(storage.read_if_exists(uri)) == Owner.of(spec)
        and not storage.has_match(f"{spec.paths.output_uri}answers-*")
    ):
        storage.delete([uri])


def check_still_owner(spec: JobSpec) -> None:
    """Checks, before the answers are replaced, that no other job has taken the sink over.

    Raises:
        JobFailedError: Another job has.
    """
    uri = spec.paths.owner_uri
    if uri is None or not isinstance(spec.sink, FilesSink) or spec.sink.on_existing == "merge":
        return
    found, own = _parse(storage.read_if_exists(uri)), Owner.of(spec)
    if found not in (None, own):
        raise JobFailedError(
            f"{_conflict(spec.sink.uri, found, own)} It was taken over while this job ran, so its files were left "
            f"as they are. The answers of this job are in {spec.paths.journal_uri!r}."
        )


def _conflict(uri: str, found: Owner | None, own: Owner) -> str:
    assert found is not None
    theirs, mine = found.job, own.job
    if theirs == mine:
        theirs, mine = (f"{owner.job} of {owner.deployment or 'no Airflow'}" for owner in (found, own))
    is_mapped = _MAP_INDEX.sub("", found.job) == _MAP_INDEX.sub("", own.job) and found.job != own.job
    way = "Put `{{ ti.map_index }}` into it" if is_mapped else "Name a sink per job"
    return (
        f"`sink.uri` {uri!r} belongs to {theirs!r}; {mine!r} would replace its answers. {way}, or set "
        "`sink.on_existing` to 'merge' or 'take_over'."
    )


def _refuse_other(spec: JobSpec, found: Owner | None) -> None:
    own = Owner.of(spec)
    if isinstance(spec.sink, FilesSink) and spec.sink.on_existing == "replace" and found not in (None, own):
        raise JobSpecError(f"{_conflict(spec.sink.uri, found, own)}")


def _parse(content: bytes | None) -> Owner | None:
    """Returns the recorded owner; `None` if there is none, or its file is not valid."""
    try:
        found = json.loads(content or b"")
        return Owner(str(found["job"]), str(found["deployment"]))
    except (ValueError, KeyError, TypeError):
        return None
