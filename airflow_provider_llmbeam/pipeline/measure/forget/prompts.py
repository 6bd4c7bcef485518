"""The prompts of the rows to forget, by their fingerprints, and which of them other rows share."""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.audit.record import key_hash
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row, RowPrompt
from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import read_source
from airflow_provider_llmbeam.pipeline.measure.forget.keys import NamedKeys
from airflow_provider_llmbeam.pipeline.measure.forget.rewrite import rows_of
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of, plain_rows
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts, with_key
from airflow_provider_llmbeam.pipeline.records import with_types
from airflow_provider_llmbeam.pipeline.sources.bigquery import discard
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import FilesAudit
from airflow_provider_llmbeam.spec.sink import FilesSink
from airflow_provider_llmbeam.spec.source import BigQuerySource

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

    @property
    def removable(self) -> frozenset[str]:
        """The fingerprints whose answers are removed."""
        return frozenset(self.fingerprints - self.shared)


def find_prompts(spec: JobSpec, keys: NamedKeys, fingerprints: Iterable[str]) -> FoundPrompts:
    """Finds the prompts of some rows: in the source, the dead letter, the answers and the audit of the job.

    Args:
        spec: The job.
        keys: Keys of the rows.
        fingerprints: Fingerprints that are known already.
    """
    found = FoundPrompts({*fingerprints})
    prompts = RowPrompts(spec)
    others: set[int] = set()
    named: dict[str, RowPrompt] = {}
    for row, is_in_source in prompts.inspected(_rows(spec, prompts), lambda each: each[0]):
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


def _rows(spec: JobSpec, prompts: RowPrompts) -> Iterator[tuple[Row, bool]]:
    """Yields the rows of the source, and those of the dead letter, which may have left it."""
    export_uri, plain = f"{spec.paths.export_uri}{uuid.uuid4().hex}/", plain_rows(spec)
    try:
        _, portions = read_source(prompts, export_uri, sys.maxsize)
        for portion in portions:
            for read in portion.rows:
                row = with_key(read, spec.source.key)
                if not isinstance(row, FailedRow):
                    yield row, True
    except JobSpecError as error:
        _log.warning("The source cannot be read, so the fingerprints come from the output alone: %s", error)
    finally:
        if isinstance(spec.source, BigQuerySource):
            discard(export_uri)
    if storage.exists(spec.paths.dead_letter_uri):
        for row in rows_of(spec.paths.dead_letter_uri):
            yield {name: value for name, value in plain(with_types(row)).items() if name != "llmbeam_error"}, False


def _add_answered(spec: JobSpec, keys: NamedKeys, found: FoundPrompts) -> None:
    """Adds the fingerprints of the answers in a files sink, and finds those that answers of other rows have."""
    if not isinstance(spec.sink, FilesSink):
        return
    answers = [uri for uri in storage.match(f"{spec.sink.uri}answers-*") if uri.endswith(("jsonl", "parquet"))]

    def fingerprints(are_wanted: bool) -> Iterator[str]:
        for uri in answers:
            for row in rows_of(uri, [*spec.source.key, "fingerprint"]):
                if (keys.of_row(row) is not None) == are_wanted and row.get("fingerprint"):
                    yield str(row["fingerprint"])

    found.fingerprints.update(fingerprints(True))
    found.shared.update(each for each in fingerprints(False) if each in found.fingerprints)


def _add_audited(spec: JobSpec, keys: NamedKeys, found: FoundPrompts) -> None:
    """Adds the fingerprints that an audit in files has of the rows; those of earlier prompts are only there."""
    audit = spec.safety.audit
    if not isinstance(audit, FilesAudit):
        return
    masker = masker_of(spec)
    rows = list(keys.rows())
    if masker is not None:  # the audit has the hash of a masked key
        masked = map(masker.row, rows)
        rows = [each.row if isinstance(each, FailedRow) else each for each in masked]
    wanted = {key_hash(row, spec.source.key).encode() for row in rows}
    for uri in storage.match(f"{audit.uri}date=*/*.jsonl"):
        with storage.open_buffered(uri) as file:
            for line in file:
                if any(each in line for each in wanted):
                    record = json.loads(line)
                    found.fingerprints.add(record["fingerprint"])
                    if {each.encode() for each in record["row_key_hashes"]} - wanted:
                        found.shared.add(record["fingerprint"])
