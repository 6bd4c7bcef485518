"""Forgets rows: removes their answers from all files that a job has written.

The fingerprints of a row that has left the source are known from its answer and its dead letter alone, so these go
last: a run that was killed is repeated, and finds them again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.engine.journal.segment_name import job_prefix
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import read_manifest
from airflow_provider_llmbeam.pipeline.bigquery_jobs import reference_of
from airflow_provider_llmbeam.pipeline.lease import hold_lease, hold_sink
from airflow_provider_llmbeam.pipeline.measure.evaluate import read_accepted
from airflow_provider_llmbeam.pipeline.measure.forget.files import read_rows, remove_lines, remove_rows
from airflow_provider_llmbeam.pipeline.measure.forget.find import (
    FoundPrompts,
    FoundTurns,
    failed_rows_uris,
    find_prompts,
    find_turns,
)
from airflow_provider_llmbeam.pipeline.measure.named_keys import NamedKeys
from airflow_provider_llmbeam.pipeline.privacy.masker import plain_rows
from airflow_provider_llmbeam.pipeline.privacy.repair import repair_fingerprint
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.pipeline.sinks.bigquery import quote, quote_table
from airflow_provider_llmbeam.pipeline.sinks.milvus import entity_id
from airflow_provider_llmbeam.pipeline.sinks.ownership import other_answers, published_answers
from airflow_provider_llmbeam.spec.fields.names import SHARED_DIRECTORIES, is_job_name
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.safety import BigQueryAudit, RowsToForget
from airflow_provider_llmbeam.spec.sink import (
    BigQuerySink,
    FilesSink,
    KafkaSink,
    MilvusSink,
    PostgresSink,
    PubSubSink,
)

#: Time after its last write from which on a segment of another job is no longer written to, in seconds.
ACTIVE_SECONDS = 3600.0
#: Files below the state of a job that quote rows, answers or the messages of a server.
_QUOTING = ("failed.json", "failed.html", "skipped.json", "evaluation.json", "evaluation.txt", "comparison.json",
            "comparison.txt", "review.jsonl", "spec.json")  # fmt: skip
#: What no job of this package reaches.
_ELSEWHERE = (
    "samples of answers in a `review_uri` that you have named, and golden sets, which have rows and answers: "
    "remove them there",
    "answers to earlier prompts of the rows (another template or model) and verdicts on them, unless an audit has "
    "their fingerprints",
    "logs, abuse monitoring and caches of the provider of the model: see the terms of its data retention",
    "backups, and copies that others have made",
)


class Removed(BaseModel):
    """What was removed in one place.

    Attributes:
        place: Kind of place, e.g. `journal`.
        count: Number of entries, rows or files.
        unit: `answers`, `rows`, `turns` or `files`.
        uri: The directory or file.
    """

    model_config = ConfigDict(frozen=True)

    place: str
    count: int
    unit: str
    uri: str


class Forgotten(BaseModel):
    """What a job has forgotten.

    Attributes:
        job: Name of the job.
        dry_run: Whether nothing was removed.
        fingerprints: Number of prompts that the rows had.
        removed: What was removed, one place per line.
        kept: What is left because other rows need it.
        left: What still has the rows, or may have them, and what to do now; nothing if the removal is complete.
        unreached: What no job of this package reaches.
        not_found: The named keys that no row of the source, the dead letter or the answers in files has.
    """

    model_config = ConfigDict(frozen=True)

    job: str
    dry_run: bool
    fingerprints: int
    removed: tuple[Removed, ...]
    kept: tuple[str, ...]
    left: tuple[str, ...]
    unreached: tuple[str, ...]
    not_found: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"Job {self.job!r}: the rows had {_count(self.fingerprints, 'prompts')}."]
        cells = [(each.place, _count(each.count, each.unit), each.uri) for each in self.removed]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["  ".join(map(str.ljust, each, widths)).rstrip() for each in cells]
        if self.not_found:
            names = ", ".join(map(repr, self.not_found))
            lines.append(f"Not found: no row of the source, the dead letter or the answers in files has {names}.")
        verb = "would be removed" if self.dry_run else "removed"
        lines.append(f"{_count(sum(each.count for each in self.removed), 'entries')} {verb}.")
        for title, entries in (
            ("Kept", self.kept),
            ("Left, so that this is not complete", self.left),
            ("Not reached", self.unreached),
        ):
            lines += [f"{title}:", *(f"- {each}" for each in entries)] if entries else []
        return "\n".join(lines)


def _count(count: int, plural: str) -> str:
    singular = plural.removesuffix("ies") + "y" if plural.endswith("ies") else plural.removesuffix("s")
    return f"{count} {singular if count == 1 else plural}"


def forget(spec: JobSpec, wanted: RowsToForget) -> Forgotten:
    """Removes the answers of some rows; repeated, it removes what is left.

    Args:
        spec: The job.
        wanted: The rows.

    Raises:
        JobFailedError: The job is running, or its batch inference has not ended; nothing was removed.
    """
    others, foreign = _other_jobs(spec) if wanted.all_jobs else ([], [])
    jobs = [spec, *others]
    with ExitStack() as leases:
        for job in jobs:
            leases.enter_context(hold_lease(job))
            _refuse_pending_batch(job)
        if isinstance(spec.sink, FilesSink):
            leases.enter_context(hold_sink(spec))
        keys = NamedKeys(wanted.keys, spec.source.key)
        turns = find_turns(spec, keys, all_jobs=wanted.all_jobs)
        prompts = find_prompts(spec, jobs, keys, [*wanted.fingerprints, *turns.fingerprints()])
        removal = _Removal(spec, jobs, keys, dry_run=wanted.dry_run)
        removal.run(prompts, turns)
        return Forgotten(
            job=spec.name,
            dry_run=wanted.dry_run,
            fingerprints=len(prompts.fingerprints),
            removed=tuple(removal.removed),
            kept=tuple(_kept(prompts)),
            left=tuple(_left(spec, jobs, keys, [*removal.active], foreign)),
            unreached=tuple(_unreached(spec, jobs)),
            not_found=keys.unfound,
        )


class _Removal:
    def __init__(self, spec: JobSpec, jobs: list[JobSpec], keys: NamedKeys, *, dry_run: bool) -> None:
        self._spec = spec
        self._jobs = jobs
        self._keys = keys
        self._dry_run = dry_run
        self.removed: list[Removed] = []
        #: Segments that another job may still write to.
        self.active: list[str] = []

    def run(self, prompts: FoundPrompts, turns: FoundTurns) -> None:
        spec, removable = self._spec, prompts.removable
        if spec.safety.privacy is not None:
            removable |= {*map(repair_fingerprint, removable)}
        for uri in dict.fromkeys(uri for job in self._jobs for uri in _journal_directories(job)):
            self._remove_entries(uri, [fingerprint.encode() for fingerprint in removable])
        for uri in turns.files:
            self._count("history", remove_lines(uri, turns.has_line, dry_run=self._dry_run), "turns", uri)
        for job in self._jobs:
            for place, uri in (
                ("staged files", job.paths.staging_uri),
                ("staged files", job.paths.new_turns_uri),
                ("batch inference", job.paths.batch_uri),
                ("export", job.paths.export_uri),
            ):
                self._delete(place, f"{uri}**")
            for name in _QUOTING:
                self._delete("report", f"{job.paths.home_uri}{name}")
            self._remove_cases(job)
        for uri in dict.fromkeys(uri for job in self._jobs for uri in job.paths.report_uris):
            self._delete("report", uri)
        for uri in published_answers(spec):
            removed = remove_rows(uri, spec.paths.staging_uri, self._is_wanted, dry_run=self._dry_run)
            self._count("answers", removed, "rows", uri)
        plain = plain_rows(spec)
        for uri in failed_rows_uris(self._jobs):
            removed = remove_rows(
                uri,
                spec.paths.staging_uri,
                lambda row: self._is_wanted(plain(row)),
                dry_run=self._dry_run,
                is_private=True,
            )
            self._count("dead letter", removed, "rows", uri)

    def _is_wanted(self, row: dict[str, object]) -> bool:
        return self._keys.of_row(row) is not None

    def _remove_entries(self, directory: str, markers: list[bytes]) -> None:
        """Removes the entries from a journal; a line is compared as it stands, as it may be incomplete."""
        own = tuple(job_prefix(job.name) for job in self._jobs)
        for metadata in storage.match_metadata(f"{directory}*.jsonl"):
            uri, is_own = metadata.path, metadata.path.rpartition("/")[2].startswith(own)
            is_active = not is_own and time.time() - metadata.last_updated_in_seconds < ACTIVE_SECONDS
            count = remove_lines(
                uri,
                lambda line: any(marker in line for marker in markers),
                dry_run=self._dry_run or is_active,
            )
            if count and is_active:
                self.active.append(uri)
            else:
                self._count("journal" if self._spec.cache is None else "cache", count, "answers", uri)

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
            self.removed.append(Removed(place=place, count=count, unit=unit, uri=uri))


def _kept(prompts: FoundPrompts) -> Iterator[str]:
    if shared := len(prompts.shared):
        yield f"answers to {shared} of the prompts, which other rows have, too: they are the answers of these"
    if in_source := sorted(prompts.in_source):
        yield f"{', '.join(in_source)} in the source: the next run sends what is still there"


def _left(
    spec: JobSpec, jobs: list[JobSpec], keys: NamedKeys, active: list[str], foreign: list[str]
) -> Iterator[str]:
    """Yields what still has the rows, or may have them."""
    for uri in failed_rows_uris(jobs):
        if unread := sum("llmbeam_raw" in row for row in read_rows(uri)):
            yield f"{unread} rows of the dead letter {uri!r} that could not be read, and so have no key"
    if foreign:
        yield f"directories whose names are those of no job: {', '.join(map(repr, foreign))}; look there yourself"
    if others := other_answers(spec):
        yield (
            f"files that no job has published, beside the answers: {', '.join(map(repr, others))}; look there "
            "yourself"
        )
    if active:
        yield (
            f"{len(active)} segments that another job of the cache may still write to, the first is {active[0]!r}"
            ": repeat this in an hour"
        )
    if text := statement(spec, keys):
        yield f"the sink: run {text}"
    audit = spec.safety.audit
    if audit is not None and audit.include_text:
        yield f"audit records in {_audit_place(spec)}, with the texts (`include_text`): remove them there"


def _audit_place(spec: JobSpec) -> str:
    audit = spec.safety.audit
    return f"table {audit.table!r}" if isinstance(audit, BigQueryAudit) else repr(spec.paths.audit_uri)


def _unreached(spec: JobSpec, jobs: list[JobSpec]) -> Iterator[str]:
    if spec.conversation is not None:
        yield "later answers of the same conversations, which may quote the rows: name their rows, too"
    audit = spec.safety.audit
    if audit is not None and not audit.include_text:
        yield f"audit records in {_audit_place(spec)}, without texts: they end with their retention"
    if isinstance(spec.runner, DataflowRunner):
        place = f"files of Dataflow in {spec.paths.temp_uri!r}, and its logs"
        yield f"{place}; no lease says whether the job runs there"
    if spec.airflow_run is not None or spec.owner:
        yield (
            "the report, and answers to be reviewed, that Airflow keeps in the XCom of the tasks: delete the Dag "
            "run, or clear the tasks"
        )
        if any(job.traces.max_rows for job in jobs):
            texts = "texts" if any(job.traces.include_text for job in jobs) else "the hash of its key"
            yield f"spans of rows, each with {texts}, in the tool to which Airflow may export traces"
    uris = (spec.paths.output_uri, *(job.paths.home_uri for job in jobs))
    if buckets := sorted({f"gs://{urlsplit(uri).netloc}" for uri in uris if uri.startswith("gs://")}):
        yield (
            f"object versions and soft-deleted objects of {', '.join(buckets)}: Cloud Storage keeps what was "
            "deleted or replaced as long as the bucket says, by default for 7 days"
        )
    yield from _ELSEWHERE


def statement(spec: JobSpec, keys: NamedKeys) -> str | None:
    """Returns what a user runs to remove rows from the sink of a job; `None` for a files sink, or without keys."""
    columns, rows, sink = spec.source.key, [*keys.rows()], spec.sink
    if not rows:
        return None
    match sink:
        case BigQuerySink():
            names = [f"CAST({quote(column)} AS STRING)" for column in columns]
            table = quote_table(reference_of(sink.table))
            return f"DELETE FROM {table} WHERE {_where(names, keys.texts(), _bigquery_text)};"
        case PostgresSink():
            names = [f"{_postgres_name(column)}::text" for column in columns]
            table = ".".join(map(_postgres_name, sink.table.split(".")))
            return f"DELETE FROM {table} WHERE {_where(names, keys.texts(), _postgres_text)};"
        case MilvusSink():
            ids = [entity_id(row, columns) for row in rows]
            return f"MilvusClient({sink.uri!r}).delete({sink.collection!r}, ids={ids!r})"
        case KafkaSink():
            names = [encode_key(row, columns).decode().rstrip("\n") for row in rows]
            return f"for key in {names!r}: Producer({{…}}).produce({sink.topic!r}, None, key)"
        case PubSubSink():
            return (
                "gcloud pubsub subscriptions seek SUBSCRIPTION --time=TIME  # all messages before TIME, for each "
                f"subscription of {sink.topic}"
            )
        case FilesSink():
            return None


def _where(names: list[str], keys: Iterable[tuple[str, ...]], literal: Callable[[str], str]) -> str:
    return " OR ".join(
        f"({' AND '.join(f'{name} = {literal(text)}' for name, text in zip(names, texts, strict=True))})"
        for texts in keys
    )


def _bigquery_text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def _postgres_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _postgres_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _journal_directories(spec: JobSpec) -> Iterator[str]:
    """Yields the directories of a job's journals: one for each server, and that of the cache."""
    home = spec.model_copy(update={"cache": None}).paths.journal_uris[-1].rstrip("/")
    journals = [home] if spec.cache is None else [home, f"{spec.state_uri}cache/{spec.cache.scope}"]
    for journal in journals:
        names = {uri.rpartition("/")[0] for uri in storage.match(f"{journal}*/*.jsonl")}
        yield from sorted(f"{name}/" for name in names if re.fullmatch(r"(@.*)?", name.removeprefix(journal)))


def _other_jobs(spec: JobSpec) -> tuple[list[JobSpec], list[str]]:
    """Returns the jobs whose state is beside that of a job, e.g. those of earlier Dag runs.

    A directory is that of a job only if it has the name of one: `*` would be all directories.

    Returns:
        The jobs, and the addresses of other directories.
    """
    parent = spec.paths.home_uri.removesuffix(f"{spec.name}/")
    below = (uri.removeprefix(parent).partition("/") for uri in storage.match(f"{parent}**"))
    names = sorted({name for name, slash, _ in below if slash} - {spec.name, *SHARED_DIRECTORIES})
    jobs = [spec.model_copy(update={"name": name}) for name in names if is_job_name(name)]
    return jobs, [f"{parent}{name}/" for name in names if not is_job_name(name)]


def _refuse_pending_batch(spec: JobSpec) -> None:
    manifest = read_manifest(spec)
    if manifest is not None and not manifest.is_published:
        raise JobFailedError(
            f"Job {spec.name!r}: its batch inference has not ended, and its request files have the rows. Nothing "
            "was removed. Run the job to its end, then repeat this."
        )
