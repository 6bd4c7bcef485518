"""The owner of a files sink: the one job that may replace its answers.

It is recorded below the sink before anything is sent, and only if no other job is: on this machine by a hard link,
on Cloud Storage with a precondition. Other filesystems offer neither: of two jobs that start within the same
moment, the later one owns the sink, and the earlier one fails when it publishes.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from google.api_core.exceptions import PreconditionFailed

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
    if not isinstance(spec.sink, FilesSink) or spec.sink.on_existing != "replace":
        return
    assert spec.paths.owner_uri is not None
    found, own = _read(spec.paths.owner_uri), Owner.of(spec)
    if found not in (None, own):
        raise JobSpecError(f"{_conflict(spec.sink.uri, found, own)} Nothing was sent or billed.")


def claim(spec: JobSpec) -> None:
    """Records the job as the owner of its sink, unless there is one; a job that merges leaves another one there.

    Raises:
        JobSpecError: Another job owns it; the message has both names.
    """
    uri = spec.paths.owner_uri
    if uri is None or not isinstance(spec.sink, FilesSink):
        return
    own = Owner.of(spec)
    if _create_if_absent(uri, own) or (found := _read(uri)) == own:
        return
    if found is None or spec.sink.on_existing == "take_over":
        with storage.create(uri) as file:
            file.write(_text(own))
    else:
        refuse_other_owner(spec)


def release(spec: JobSpec) -> None:
    """Forgets the owner of a sink without answers, if it is this job, which has had nothing to publish."""
    uri = spec.paths.owner_uri
    if (
        uri is not None
        and _read(uri) == Owner.of(spec)
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
    found, own = _read(uri), Owner.of(spec)
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


def _read(uri: str) -> Owner | None:
    """Returns the recorded owner; `None` if there is none, or its file is not valid."""
    if not storage.exists(uri):
        return None
    text = storage.read(uri)
    try:
        found = json.loads(text)
        return Owner(str(found["job"]), str(found["deployment"]))
    except (ValueError, KeyError, TypeError):
        return None


def _text(owner: Owner) -> bytes:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"job": owner.job, "deployment": owner.deployment, "since": since}).encode()


def _create_if_absent(uri: str, owner: Owner) -> bool:
    """Creates the file, complete, if it does not exist; returns whether this call created it."""
    if (bucket_and_name := storage.cloud_object(uri)) is not None:
        bucket, name = bucket_and_name
        try:
            bucket.blob(name).upload_from_string(_text(owner), if_generation_match=0)
        except (
            PreconditionFailed
        ):  # also for a repeated request, whose first reply was lost: the owner is read next
            return False
        return True
    if storage.is_local(uri):
        return _link(Path(uri), _text(owner))
    if storage.exists(uri):
        return False
    with storage.create(uri) as file:
        file.write(_text(owner))
    return True


def _link(path: Path, text: bytes) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    staged.write_bytes(text)
    try:
        os.link(staged, path)
    except FileExistsError:
        return False
    except OSError:  # a filesystem without hard links, such as FAT or some of FUSE
        try:
            with path.open("xb") as file:
                file.write(text)
        except FileExistsError:
            return False
    finally:
        staged.unlink()
    return True
