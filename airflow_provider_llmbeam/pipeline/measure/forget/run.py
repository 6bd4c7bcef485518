"""Forgets rows: removes their answers from all files that a job has written.

The fingerprints of a row that has left the source are known from its answer and its dead letter alone, so these go
last: a run that was killed is repeated, and finds them again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

from airflow_provider_llmbeam.engine.journal.segment_name import job_prefix
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import read_manifest
from airflow_provider_llmbeam.pipeline.lease import hold_lease, hold_sink
from airflow_provider_llmbeam.pipeline.measure.evaluation.report import read_accepted
from airflow_provider_llmbeam.pipeline.measure.forget.history import TurnsToForget
from airflow_provider_llmbeam.pipeline.measure.forget.keys import NamedKeys
from airflow_provider_llmbeam.pipeline.measure.forget.outcome import Forgotten, Removed
from airflow_provider_llmbeam.pipeline.measure.forget.prompts import FoundPrompts, find_prompts
from airflow_provider_llmbeam.pipeline.measure.forget.rewrite import lines_removed, rows_of, rows_removed
from airflow_provider_llmbeam.pipeline.measure.forget.statements import statement
from airflow_provider_llmbeam.pipeline.privacy.masker import plain_rows
from airflow_provider_llmbeam.pipeline.privacy.repair import repair_fingerprint
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.safety import RowsToForget
from airflow_provider_llmbeam.spec.sink import FilesSink

_log = logging.getLogger("llmbeam")

#: Time after its last write from which on a segment of another job is no longer written to, in seconds.
ACTIVE_SECONDS = 3600.0
#: Files below the state of a job that quote rows, answers or the messages of a server.
_QUOTING = ("failed.json", "failed.html", "skipped.json", "evaluation.json", "evaluation.txt", "comparison.json",
            "comparison.txt", "review.jsonl", "spec.json")  # fmt: skip
#: Directories below `state_uri` that belong to no job.
_SHARED = ("cache", "conversations", "history")
_LATER = "later answers of the same conversations, which may quote the rows: name their rows, too"
_PROVIDER = "logs, abuse monitoring and caches of the provider of the model: see the terms of its data retention"
_BACKUPS = "backups, and copies that others have made"
_PAGES = (
    "the report, and answers to be reviewed, that Airflow keeps in the XCom of the tasks: delete the Dag run, or "
    "clear the tasks"
)
_OWN_FILES = (
    "samples of answers in a `review_uri` that you have named, and golden sets, which have rows and answers: "
    "remove them there"
)
_EARLIER = (
    "answers to earlier prompts of the rows (another template or model) and verdicts on them, unless an audit has "
    "their fingerprints"
)
_UNNAMED = (
    "verdicts of judges and guards that earlier versions recorded, whose lines of the journal have no `about`: "
    "delete the journal to remove them"
)


def forget(spec: JobSpec, wanted: RowsToForget) -> Forgotten:
    """Removes the answers of some rows; repeated, it removes what is left.

    Args:
        spec: The job.
        wanted: The rows.

    Raises:
        JobFailedError: The job is running, or its batch inference has not ended; nothing was removed.
    """
    jobs = [spec, *(_other_jobs(spec) if wanted.all_jobs else ())]
    with ExitStack() as leases:
        for job in jobs:
            leases.enter_context(hold_lease(job))
            _refuse_pending_batch(job)
        if isinstance(spec.sink, FilesSink):
            leases.enter_context(hold_sink(spec))
        keys = NamedKeys(wanted.keys, spec.source.key)
        turns = TurnsToForget.of(spec, keys, all_jobs=wanted.all_jobs)
        found = find_prompts(spec, keys, [*wanted.fingerprints, *turns.fingerprints()])
        return _Removal(spec, jobs, keys, found, turns, dry_run=wanted.dry_run).run(wanted.keys)


class _Removal:
    def __init__(
        self,
        spec: JobSpec,
        jobs: list[JobSpec],
        keys: NamedKeys,
        found: FoundPrompts,
        turns: TurnsToForget,
        *,
        dry_run: bool,
    ) -> None:
        self._spec = spec
        self._jobs = jobs
        self._keys = keys
        self._found = found
        self._turns = turns
        removable = found.removable
        if spec.safety.privacy is not None:
            removable |= {*map(repair_fingerprint, removable)}
        self._markers = [fingerprint.encode() for fingerprint in removable]
        self._dry_run = dry_run
        self._removed: list[Removed] = []
        self._active: list[str] = []

    def run(self, named: tuple[str, ...]) -> Forgotten:
        directories = dict.fromkeys(uri for job in self._jobs for uri in _journal_directories(job))
        for uri in directories:
            self._remove_entries(uri)
        for uri, count in self._turns.remove(dry_run=self._dry_run):
            self._count("history", count, "turns", uri)
        for job in self._jobs:
            self._delete("staged files", f"{job.paths.staging_uri}**")
            self._delete("staged files", f"{job.paths.new_turns_uri}**")
            self._delete("batch inference", f"{job.paths.batch_uri}**")
            self._delete("export", f"{job.paths.export_uri}**")
            for name in _QUOTING:
                self._delete("report", f"{job.paths.home_uri}{name}")
            self._remove_cases(job)
        for uri in (self._spec.paths.report_uri, self._spec.paths.report_html_uri):
            self._delete("report", uri)
        if isinstance(self._spec.sink, FilesSink):
            for uri in sorted(storage.match(f"{self._spec.sink.uri}answers-*")):
                removed = rows_removed(uri, self._spec.paths.staging_uri, self._is_row, dry_run=self._dry_run)
                self._count("answers", removed, "rows", uri)
        if storage.exists(uri := self._spec.paths.dead_letter_uri):
            plain = plain_rows(self._spec)
            removed = rows_removed(
                uri,
                self._spec.paths.staging_uri,
                lambda row: self._is_row(plain(row)),
                dry_run=self._dry_run,
                is_private=True,
            )
            self._count("dead letter", removed, "rows", uri)
        return Forgotten(
            job=self._spec.name,
            dry_run=self._dry_run,
            fingerprints=len(self._found.fingerprints),
            removed=tuple(self._removed),
            kept=tuple(self._kept()),
            unreached=tuple(self._unreached(named)),
            not_found=self._keys.unfound,
        )

    def _is_row(self, row: dict[str, object]) -> bool:
        return self._keys.of_row(row) is not None

    def _remove_entries(self, directory: str) -> None:
        """Removes the entries from a journal; a line is compared as it stands, as it may be incomplete."""
        own = tuple(job_prefix(job.name) for job in self._jobs)
        for metadata in storage.match_metadata(f"{directory}*.jsonl"):
            uri, is_own = metadata.path, metadata.path.rpartition("/")[2].startswith(own)
            is_active = not is_own and time.time() - metadata.last_updated_in_seconds < ACTIVE_SECONDS
            count = lines_removed(uri, self._has_fingerprint, dry_run=self._dry_run or is_active)
            if count and is_active:
                self._active.append(uri)
            else:
                self._count("journal" if self._spec.cache is None else "cache", count, "answers", uri)

    def _has_fingerprint(self, line: bytes) -> bool:
        return any(marker in line for marker in self._markers)

    def _remove_cases(self, job: JobSpec) -> None:
        """Removes the wrong answers from the last accepted evaluation, and keeps its scores as the baseline."""
        accepted = read_accepted(job)
        if accepted is not None and accepted.wrong:
            if not self._dry_run:
                text = accepted.model_copy(update={"wrong": []}).model_dump_json(indent=2)
                storage.replace(job.paths.accepted_uri, text.encode())
            self._count("evaluation", len(accepted.wrong), "rows", job.paths.accepted_uri)

    def _delete(self, place: str, pattern: str) -> None:
        uris = storage.match(pattern)
        if uris and not self._dry_run:
            storage.delete(uris)
        self._count(place, len(uris), "files", pattern.rstrip("*"))

    def _count(self, place: str, count: int, unit: str, uri: str) -> None:
        if count:
            self._removed.append(Removed(place=place, count=count, unit=unit, uri=uri))

    def _kept(self) -> Iterator[str]:
        if shared := len(self._found.shared):
            yield f"answers to {shared} of the prompts, which other rows have, too: they are the answers of these"
        if in_source := sorted(self._found.in_source):
            yield f"{', '.join(in_source)} in the source: the next run sends what is still there"

    def _unreached(self, named: tuple[str, ...]) -> Iterator[str]:
        spec = self._spec
        uri = spec.paths.dead_letter_uri
        if storage.exists(uri) and (unread := sum("llmbeam_raw" in row for row in rows_of(uri))):
            yield f"{unread} rows of the dead letter {uri!r} that could not be read, and so have no key"
        if spec.conversation is not None:
            yield _LATER
        if self._active:
            yield (
                f"{len(self._active)} segments that another job of the cache may still write to, the first is "
                f"{self._active[0]!r}: repeat this in an hour"
            )
        if named and (text := statement(spec, named)):
            yield f"the sink: run {text}"
        audit = spec.safety.audit
        if audit is not None:
            texts = "with the texts (`include_text`)" if audit.include_text else "without texts"
            yield f"audit records in {spec.paths.audit_uri!r}, {texts}: they end with their retention"
        if isinstance(spec.runner, DataflowRunner):
            place = f"files of Dataflow in {spec.paths.temp_uri!r}, and its logs"
            yield f"{place}; no lease says whether the job runs there"
        if spec.airflow_run is not None or spec.owner:
            yield _PAGES
        if buckets := sorted({*self._buckets()}):
            yield (
                f"object versions and soft-deleted objects of {', '.join(buckets)}: Cloud Storage keeps what was "
                "deleted or replaced as long as the bucket says, by default for 7 days"
            )
        yield from (_OWN_FILES, _EARLIER, _UNNAMED, _PROVIDER, _BACKUPS)

    def _buckets(self) -> Iterator[str]:
        """Yields the buckets in which files of the jobs are, or were."""
        for uri in (self._spec.paths.output_uri, *(job.paths.home_uri for job in self._jobs)):
            if uri.startswith("gs://"):
                yield f"gs://{urlsplit(uri).netloc}"


def _journal_directories(spec: JobSpec) -> Iterator[str]:
    """Yields the directories of a job's journals: one for each server, and that of the cache."""
    home = spec.model_copy(update={"cache": None}).paths.journal_uris[-1].rstrip("/")
    journals = [home] if spec.cache is None else [home, f"{spec.state_uri}cache/{spec.cache.scope}"]
    for journal in journals:
        names = {uri.rpartition("/")[0] for uri in storage.match(f"{journal}*/*.jsonl")}
        yield from sorted(f"{name}/" for name in names if re.fullmatch(r"(@.*)?", name.removeprefix(journal)))


def _other_jobs(spec: JobSpec) -> list[JobSpec]:
    """Returns the jobs whose state is beside that of a job, e.g. those of earlier Dag runs."""
    parent = spec.paths.home_uri.removesuffix(f"{spec.name}/")
    names = {uri.removeprefix(parent).partition("/")[0] for uri in storage.match(f"{parent}**")}
    found = (spec.model_copy(update={"name": name}) for name in sorted(names - {spec.name, *_SHARED}))
    return [
        job
        for job in found
        if storage.has_match(f"{job.paths.home_uri}*") or storage.has_match(f"{job.paths.home_uri}**")
    ]


def _refuse_pending_batch(spec: JobSpec) -> None:
    manifest = read_manifest(spec)
    if manifest is not None and not manifest.is_published:
        raise JobFailedError(
            f"Job {spec.name!r}: its batch inference has not ended, and its request files have the rows. Nothing "
            "was removed. Run the job to its end, then repeat this."
        )
