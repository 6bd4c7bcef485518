"""The prompts of the rows to forget, by their fingerprints, and which of them other rows share."""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.audit.record import key_hash
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row
from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import read_source
from airflow_provider_llmbeam.pipeline.measure.forget.keys import NamedKeys
from airflow_provider_llmbeam.pipeline.measure.forget.rewrite import rows_of
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of, plain_rows
from airflow_provider_llmbeam.pipeline.records import with_types
from airflow_provider_llmbeam.pipeline.sources.bigquery import discard
from airflow_provider_llmbeam.pipeline.transforms.identify_media import MediaIdentifier
from airflow_provider_llmbeam.pipeline.transforms.read import with_key
from airflow_provider_llmbeam.pipeline.transforms.render import PromptRenderer
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
    renderer = _Renderer(spec)
    others: set[int] = set()
    prompts: set[Prompt] = set()
    for row, is_in_source in renderer.inspected(_rows(spec)):
        key = keys.of_row(row)
        if (prompt := renderer.prompt(row)) is None:
            continue
        if key is not None:
            found.in_source |= {key} if is_in_source else set()
            prompts.add(prompt)
        else:
            others.add(hash(prompt))
    for prompt in prompts:
        if (fingerprint := renderer.fingerprint(prompt)) is not None:
            found.fingerprints.add(fingerprint)
            if hash(prompt) in others:
                found.shared.add(fingerprint)
    _add_answered(spec, keys, found)
    _add_audited(spec, keys, found)
    return found


class _Renderer:
    def __init__(self, spec: JobSpec) -> None:
        self._renderer = PromptRenderer(spec.prompt, is_embedded=spec.embedding is not None)
        self._fingerprint = spec.fingerprinter()
        self._media = MediaIdentifier(spec) if spec.prompt.media else None
        self._masker = masker_of(spec)

    def inspected(self, rows: Iterable[tuple[Row, bool]]) -> Iterable[tuple[Row, bool]]:
        """Returns the rows, whose texts a detector of type `dlp` inspects together."""
        return rows if self._masker is None else self._masker.inspected(rows, lambda each: each[0])

    def prompt(self, row: Row) -> Prompt | None:
        try:
            if self._masker is None:
                return self._renderer.render(row)
            masked = self._masker.row(row)
            if isinstance(masked, FailedRow):
                return None
            return self._masker.prompt(masked, self._renderer.render(masked))[1]
        except Exception:  # noqa: BLE001 - a row that becomes no prompt has no answer
            return None

    def fingerprint(self, prompt: Prompt) -> str | None:
        if self._media is None:
            return self._fingerprint(prompt.text, prompt.system)
        identified = self._media.identified(prompt)
        return None if isinstance(identified, str) else identified[0]


def _rows(spec: JobSpec) -> Iterator[tuple[Row, bool]]:
    """Yields the rows of the source, and those of the dead letter, which may have left it."""
    export_uri, plain = f"{spec.paths.export_uri}{uuid.uuid4().hex}/", plain_rows(spec)
    try:
        _, portions = read_source(spec.source, export_uri, sys.maxsize)
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
