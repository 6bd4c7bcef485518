"""Reuse of answers from the journal, and one request per distinct prompt."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio
from apache_beam.io.filesystem import CompressionTypes

from airflow_provider_llmbeam.engine.journal import Entry, read_entries
from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, Origin, RenderedRow, Request, Row
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.transforms.keys import refuse_duplicates
from airflow_provider_llmbeam.spec.job import JobSpec

REUSED = "reused"
_DAY_SECONDS = 86_400.0
_READ_BYTES = 2**20


def reuse(
    root: beam.Pipeline,
    rendered: beam.PCollection,
    spec: JobSpec,
    duplicate_keys: beam.pvalue.AsList | None,
    oldest_at: float = 0.0,
) -> tuple[beam.PCollection, list[beam.PCollection]]:
    """Separates rows with an answer in the journal from rows that need a request.

    A first run has no journal and no join; answers of the same run are found by their batch.

    Args:
        root: The pipeline.
        rendered: `(fingerprint, RenderedRow)`.
        spec: The job.
        duplicate_keys: Duplicate keys, which fail the job here, before anything is sent.
        oldest_at: Unix time; older answers are requested again.

    Returns:
        One `Request` per fingerprint, with all its rows; and the `AnsweredRow`s from the journal, in zero or one
        collections.
    """
    pattern = f"{spec.journal_uri}*.jsonl"
    guard = () if duplicate_keys is None else (duplicate_keys,)
    if not storage.has_match(pattern):
        groups = rendered | "ByFingerprint" >> beam.GroupByKey()
        return groups | "MakeRequest" >> beam.ParDo(MakeRequest(), *guard), []
    journal = (
        root
        | "MatchJournal" >> fileio.MatchFiles(pattern, empty_match_treatment=fileio.EmptyMatchTreatment.ALLOW)
        # Answers are older than the last write of their segment, so an old segment has only old answers.
        | "Recent" >> beam.Filter(lambda metadata: metadata.last_updated_in_seconds >= oldest_at)
        | "OpenJournal" >> fileio.ReadMatches(compression=CompressionTypes.UNCOMPRESSED)
        | "JournalEntries" >> beam.FlatMap(_read_segment, oldest_at)
    )
    decided = (
        {"rows": rendered, "journal": journal}
        | "ByFingerprint" >> beam.CoGroupByKey()
        | "Reuse" >> beam.ParDo(Reuse(spec.name), *guard).with_outputs(REUSED, main="requests")
    )
    return decided["requests"], [decided[REUSED]]


def oldest_useful_at(spec: JobSpec, now: float) -> float:
    """Returns the Unix time before which answers are requested again."""
    max_age_days = spec.cache.max_age_days if spec.cache else None
    return 0.0 if max_age_days is None else now - max_age_days * _DAY_SECONDS


def _read_segment(file: fileio.ReadableFile, oldest_at: float) -> Iterator[tuple[str, tuple[str, Completion]]]:
    for entry in _entries(file.open(), oldest_at):
        yield entry.fingerprint, (entry.job, entry.completion)


def _entries(file: Any, oldest_at: float) -> Iterator[Entry]:
    # Files that Beam opens on Cloud Storage read lines byte by byte: 100,000 entries took 16 s.
    with io.BufferedReader(file, _READ_BYTES) as lines:
        for entry in read_entries(lines):
            if entry.completion.answered_at >= oldest_at:
                yield entry


def journal_entries(spec: JobSpec, oldest_at: float) -> Iterator[Entry]:
    """Reads the journal of a job, without a graph; it is empty in a first run."""
    for metadata in storage.match_metadata(f"{spec.journal_uri}*.jsonl"):
        if metadata.last_updated_in_seconds >= oldest_at:
            yield from _entries(storage.open(metadata.path), oldest_at)


class MakeRequest(CountingDoFn):
    """Makes one `Request` for all rows of a fingerprint."""

    def process(
        self,
        group: tuple[str, Iterable[RenderedRow]],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[Request]:
        """Processes the rows of one fingerprint."""
        refuse_duplicates(duplicate_keys)
        fingerprint, found = group
        rows: list[Row] = []
        prompt: Prompt | None = None
        for row, text, system, media in found:
            rows.append(row)
            prompt = prompt or Prompt(text, system, media)
        if prompt is not None:
            if len(rows) > 1:
                self.count("duplicates", len(rows) - 1)
            yield Request(fingerprint, tuple(rows), prompt)


class Reuse(MakeRequest):
    """Uses earlier answers for the rows of a fingerprint, or makes one `Request`.

    Outputs one `Request` for all rows of a fingerprint without an answer; and `reused`, the answered rows:
    `resumed` from this job, else `cached` from another.
    """

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job

    def process(
        self,
        group: tuple[str, Any],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[Any]:
        """Processes one fingerprint."""
        fingerprint, found = group
        earlier = dict(found["journal"])
        if not earlier:
            yield from super().process((fingerprint, found["rows"]), duplicate_keys)
            return
        refuse_duplicates(duplicate_keys)
        origin: Origin = "resumed" if self._job in earlier else "cached"
        completion = earlier[self._job] if origin == "resumed" else max(earlier.values(), key=_answered_at)
        for row, *_ in found["rows"]:
            self.count("resumed")
            yield beam.pvalue.TaggedOutput(REUSED, AnsweredRow(row, fingerprint, completion, origin))


def _answered_at(completion: Completion) -> float:
    return completion.answered_at
