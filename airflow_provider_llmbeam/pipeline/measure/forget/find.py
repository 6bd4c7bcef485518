"""Finds what a job has of the rows to forget: the fingerprints of their prompts, and their turns."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.audit.record import key_hash
from airflow_provider_llmbeam.pipeline.conversation.order import turn_name
from airflow_provider_llmbeam.pipeline.conversation.store import decode_turn, history_directory, read_turns
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row, RowPrompt
from airflow_provider_llmbeam.pipeline.measure.forget.files import read_rows
from airflow_provider_llmbeam.pipeline.measure.named_keys import NamedKeys
from airflow_provider_llmbeam.pipeline.measure.portions import read_once
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of, plain_rows
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts, with_key
from airflow_provider_llmbeam.pipeline.records import with_types
from airflow_provider_llmbeam.pipeline.sinks.ownership import published_answers
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import FilesAudit
from airflow_provider_llmbeam.spec.safety.forget import valid_fingerprint
from airflow_provider_llmbeam.spec.sink import FilesSink

_log = logging.getLogger("llmbeam")


@dataclass
class FoundPrompts:
    """The prompts of the rows to forget.

    Attributes:
        fingerprints: Their fingerprints, also those that other rows share.
        shared: Fingerprints of prompts that other rows have, too: their answers are also those of these rows.
        in_source: Keys of the rows that are still in the source.
    """

    fingerprints: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    in_source: set[str] = field(default_factory=set)

    def add(self, found: Any) -> bool:
        """Adds a fingerprint that a file has, if it is one; returns whether it is."""
        try:
            self.fingerprints.add(valid_fingerprint(found))
        except ValueError:
            _log.warning("%.80r is not the fingerprint of a prompt, and was passed over.", found)
            return False
        return True

    @property
    def removable(self) -> frozenset[str]:
        """The fingerprints whose answers are removed."""
        return frozenset(self.fingerprints - self.shared)


def find_prompts(
    spec: JobSpec, jobs: Iterable[JobSpec], keys: NamedKeys, fingerprints: Iterable[str]
) -> FoundPrompts:
    """Finds the prompts of some rows: in the source, the failed rows, the answers and the audit of the job.

    Args:
        spec: The job.
        jobs: The jobs whose failed rows are read.
        keys: Keys of the rows.
        fingerprints: Fingerprints that are known already.
    """
    found = FoundPrompts()
    for fingerprint in fingerprints:
        found.add(fingerprint)
    prompts = RowPrompts(spec)
    others: set[int] = set()
    named: dict[str, RowPrompt] = {}
    for row, is_in_source in prompts.inspected(_rows(spec, jobs, prompts), lambda each: each[0]):
        key = keys.of_row(row)
        of_row = prompts.prompt_of_row(row)
        if isinstance(of_row, FailedRow):  # a row that becomes no prompt has no answer
            continue
        if key is not None:
            found.in_source |= {key} if is_in_source else set()
            named[of_row.fingerprint] = of_row
        else:
            others.add(hash(of_row.fingerprint))
    for before, identified in zip(named, prompts.identify([*named.values()]), strict=True):
        if isinstance(identified, RowPrompt):
            found.fingerprints.add(identified.fingerprint)
            if hash(before) in others:
                found.shared.add(identified.fingerprint)
    _add_answered(spec, keys, found)
    _add_audited(spec, keys, found)
    return found


def failed_rows_uris(jobs: Iterable[JobSpec]) -> list[str]:
    """Returns the files with failed rows of some jobs: dead letters, and those of runs that published nothing."""
    uris = (uri for job in jobs for uri in (job.paths.dead_letter_uri, job.paths.failed_rows_uri))
    return [uri for uri in dict.fromkeys(uris) if storage.exists(uri)]


def _rows(spec: JobSpec, jobs: Iterable[JobSpec], prompts: RowPrompts) -> Iterator[tuple[Row, bool]]:
    """Yields the rows of the source, and the failed ones, which may have left it."""
    plain = plain_rows(spec)
    try:
        with read_once(spec, prompts, sys.maxsize) as reading:
            for read in reading.rows():
                row = with_key(read, spec.source.key)
                if not isinstance(row, FailedRow):
                    yield row, True
    except JobSpecError as error:
        _log.warning("The source cannot be read, so the fingerprints come from the output alone: %s", error)
    for uri in failed_rows_uris(jobs):
        for row in read_rows(uri):
            yield {name: value for name, value in plain(with_types(row)).items() if name != "llmbeam_error"}, False


def _add_answered(spec: JobSpec, keys: NamedKeys, found: FoundPrompts) -> None:
    """Adds the fingerprints of the answers in a files sink, and finds those that answers of other rows have."""
    if not isinstance(spec.sink, FilesSink):
        return
    answers = published_answers(spec)

    def fingerprints(are_wanted: bool) -> Iterator[Any]:
        for uri in answers:
            for row in read_rows(uri, [*spec.source.key, "llmbeam_fingerprint"]):
                if (keys.of_row(row) is not None) == are_wanted:
                    yield row.get("llmbeam_fingerprint")

    for fingerprint in fingerprints(True):
        found.add(fingerprint)
    others = (each for each in fingerprints(False) if isinstance(each, str))
    found.shared.update(each for each in others if each in found.fingerprints)


def _add_audited(spec: JobSpec, keys: NamedKeys, found: FoundPrompts) -> None:
    """Adds the fingerprints that an audit in files has of the rows; those of earlier prompts are only there."""
    audit = spec.safety.audit
    if not isinstance(audit, FilesAudit):
        return
    masker = masker_of(spec)
    rows = list(keys.rows_and_floats())
    if masker is not None:  # the audit has the hash of a masked key
        masked = map(masker.row, rows)
        rows = [each.row if isinstance(each, FailedRow) else each for each in masked]
    wanted = {key_hash(row, spec.source.key).encode() for row in rows}
    for uri in storage.match(f"{audit.uri}date=*/*.jsonl"):
        with storage.open_buffered(uri) as file:
            for line in file:
                if any(each in line for each in wanted):
                    _add_record(line, wanted, found)


def _add_record(line: bytes, wanted: set[bytes], found: FoundPrompts) -> None:
    try:
        record = json.loads(line)
        fingerprint, hashes = record["fingerprint"], {str(each).encode() for each in record["row_key_hashes"]}
    except (ValueError, LookupError, TypeError, RecursionError):  # no record of an audit
        return
    if hashes & wanted and found.add(fingerprint) and hashes - wanted:
        found.shared.add(fingerprint)


@dataclass(frozen=True)
class FoundTurns:
    """The turns of the rows to forget, in the history of conversations.

    Attributes:
        files: Files of the history.
        names: Names of the turns, as the history has them.
    """

    files: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()

    def fingerprints(self) -> Iterator[str]:
        """Yields their fingerprints."""
        for uri in self.files:
            yield from (turn.fingerprint for _, turn in read_turns(uri) if turn.name in self.names)

    def has_line(self, line: bytes) -> bool:
        """Returns whether a line of a file is one of them."""
        try:
            return decode_turn(line)[1].name in self.names
        except ValueError:
            return False


def find_turns(spec: JobSpec, keys: NamedKeys, *, all_jobs: bool) -> FoundTurns:
    """Finds the turns of some rows of a job; none without conversations.

    Args:
        spec: The job.
        keys: Keys of the rows.
        all_jobs: Whether the histories of the other tasks below `state_uri` are searched, too.
    """
    if spec.conversation is None:
        return FoundTurns()
    directory = history_directory(spec)
    if all_jobs:
        directory = f"{directory.rstrip('/').rpartition('/')[0]}/*/"
    masker = masker_of(spec)
    rows = (row if masker is None else masker.row(row) for row in keys.rows_and_floats())
    names = {turn_name(row, spec.source.key) for row in rows if not isinstance(row, FailedRow)}
    return FoundTurns(tuple(sorted(storage.match(f"{directory}*.jsonl"))), frozenset(names))
