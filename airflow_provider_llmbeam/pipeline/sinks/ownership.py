"""The owner of a files sink: the one job that may replace its answers.

It is recorded below the sink before anything is sent, and only if no other job is, see `storage.change`. On other
filesystems than this machine's and Cloud Storage, the later one of two jobs that start within the same moment owns
the sink, and the earlier one fails when it publishes.

The same file lists the files that jobs have published in the directory. No other one is replaced or deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.paths import REPORT_NAMES
from airflow_provider_llmbeam.spec.sink import FilesSink

#: Files beside the answers, of any job.
_BESIDE = (
    "dead_letter-00000-of-00001.jsonl",
    *(f"{name}.{kind}" for name in REPORT_NAMES for kind in ("json", "html")),
)
_ANSWERS = re.compile(r"answers-\d{5}-of-\d{5}\.(jsonl|parquet)")
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
            return json.dumps({**asdict(own), "since": since, "files": sorted(_files_of(spec, content))}).encode()
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


def files_to_replace(spec: JobSpec) -> list[str]:
    """Returns the addresses of the answers in a files sink that jobs have published, before others replace them.

    Raises:
        JobFailedError: Another job has taken the sink over, or the job would replace a file of no job.
    """
    assert isinstance(spec.sink, FilesSink)
    assert spec.paths.owner_uri is not None
    content = storage.read_if_exists(spec.paths.owner_uri)
    published = _files_of(spec, content)
    if (fault := find_foreign_file(spec, published)) is not None:
        raise JobFailedError(f"{fault} The answers are in the journal: a retry sends nothing to the model.")
    found, own = _parse(content), Owner.of(spec)
    if spec.sink.on_existing != "merge" and found not in (None, own):
        raise JobFailedError(
            f"{_conflict(spec.sink.uri, found, own)} It was taken over while this job ran, so its files were left "
            f"as they are. The answers of this job are in {spec.paths.journal_uri!r}."
        )
    return _answers_among(spec.sink, published)


def find_foreign_file(spec: JobSpec, published: frozenset[str] | None = None) -> str | None:
    """Returns what is wrong with a sink in which the job would replace a file that no job has published.

    Answers are no such files for a job that merges: it keeps their rows.

    Args:
        spec: The job.
        published: Names of the files that jobs have published; `None`: they are read.
    """
    if not isinstance(spec.sink, FilesSink):
        return None
    known = _published(spec) if published is None else published
    for name in sorted((names_of(spec) - known) & _present(spec.sink)):
        if spec.sink.on_existing != "merge" or not _ANSWERS.fullmatch(name):
            return (
                f"`sink.uri` {spec.sink.uri!r} has a file {name!r} that no job has published there, and that this "
                "one would replace. Move it to another place, or name another directory."
            )
    return None


def names_of(spec: JobSpec) -> frozenset[str]:
    """Returns the names of the files that a job publishes in its files sink."""
    sink, paths = spec.sink, spec.paths
    assert isinstance(sink, FilesSink)
    answers = (f"answers-{shard:05}-of-{sink.shards:05}.{sink.format}" for shard in range(sink.shards))
    beside = (paths.dead_letter_uri, paths.report_uri, paths.report_html_uri)
    return frozenset((*answers, *(uri.removeprefix(sink.uri) for uri in beside)))


def record_published(spec: JobSpec, names: Iterable[str]) -> None:
    """Records which files of the sink jobs have published; what lies beside the answers stays recorded."""
    if (uri := spec.paths.owner_uri) is None:
        return
    owner = asdict(Owner.of(spec))

    def recorded(content: bytes | None) -> bytes:
        files = sorted({*names, *(_files_of(spec, content) & {*_BESIDE})})
        return json.dumps({**owner, **_object(content), "files": files}).encode()

    storage.change(uri, recorded)


def published_answers(spec: JobSpec) -> list[str]:
    """Returns the addresses of the files of answers that jobs have published in the sink; none in a table."""
    if not isinstance(spec.sink, FilesSink):
        return []
    return _answers_among(spec.sink, _published(spec))


def _answers_among(sink: FilesSink, names: frozenset[str]) -> list[str]:
    """Returns the addresses of the answers in a sink that have one of these names."""
    return [uri for uri in sorted(storage.match(f"{sink.uri}answers-*")) if uri.removeprefix(sink.uri) in names]


def other_answers(spec: JobSpec) -> list[str]:
    """Returns the addresses of files with a name like those of answers that no job has published in the sink."""
    if not isinstance(spec.sink, FilesSink):
        return []
    return sorted({*storage.match(f"{spec.sink.uri}answers-*")} - {*published_answers(spec)})


def _present(sink: FilesSink) -> set[str]:
    """Returns the names of files in the sink that answers, or what lies beside them, would have."""
    answers = {uri.removeprefix(sink.uri) for uri in storage.match(f"{sink.uri}answers-*")}
    return answers | {name for name in _BESIDE if storage.exists(f"{sink.uri}{name}")}


def _published(spec: JobSpec) -> frozenset[str]:
    """Returns the names of the files that jobs have published in the sink."""
    assert spec.paths.owner_uri is not None
    return _files_of(spec, storage.read_if_exists(spec.paths.owner_uri))


def _files_of(spec: JobSpec, content: bytes | None) -> frozenset[str]:
    """Returns the files that the file of an owner lists; all with such names if it is of an earlier release."""
    if content is None:
        return frozenset()
    names = _object(content).get("files")
    if not isinstance(names, list):
        directory = spec.paths.output_uri
        names = [uri.removeprefix(directory) for uri in storage.match(f"{directory}*")]
    return frozenset(name for name in names if isinstance(name, str) and _is_own(name))


def _is_own(name: str) -> bool:
    return name in _BESIDE or _ANSWERS.fullmatch(name) is not None


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
        raise JobSpecError(_conflict(spec.sink.uri, found, own))


def _parse(content: bytes | None) -> Owner | None:
    """Returns the recorded owner; `None` if there is none, or its file is not valid."""
    found = _object(content)
    try:
        return Owner(str(found["job"]), str(found["deployment"]))
    except KeyError:
        return None


def _object(content: bytes | None) -> dict[str, Any]:
    """Returns the JSON object of a file, which is empty for a file that is not valid."""
    try:
        found = json.loads(content or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
