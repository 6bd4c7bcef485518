"""What is paid for already is not asked again: the journal first, then equal prompts once."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from airflow_provider_llmbeam.engine.journal import Entry, read_entries
from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.prompt import Prompt
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
    """Sorts rows by whether their answer is there already.

    A first run has no journal, and is spared the join: answers of this very run are found by their batch.

    Args:
        root: The pipeline.
        rendered: `(fingerprint, RenderedRow)`.
        spec: The job, which knows its journal.
        oldest_at: Unix time; answers from before are asked for again.
        duplicate_keys: Keys that make the job end here, before anything is sent.

    Returns:
        `Request`s, one per fingerprint, for all of its rows; and the `AnsweredRow`s that need none, in no or one
        collection.
    """
    pattern = f"{spec.journal_uri}*.jsonl"
    guard = () if duplicate_keys is None else (duplicate_keys,)
    if not FileSystems.match([pattern], limits=[1])[0].metadata_list:
        groups = rendered | "ByFingerprint" >> beam.GroupByKey()
        return groups | "Ask" >> beam.ParDo(AskOnce(), *guard), []
    journal = (
        root
        | "MatchJournal" >> fileio.MatchFiles(pattern, empty_match_treatment=fileio.EmptyMatchTreatment.ALLOW)
        # What was answered later was written later: a segment that is too old holds nothing that is not.
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
    """The Unix time from before which answers are asked for again."""
    max_age_days = spec.cache.max_age_days if spec.cache else None
    return 0.0 if max_age_days is None else now - max_age_days * _DAY_SECONDS


def _read_segment(file: fileio.ReadableFile, oldest_at: float) -> Iterator[tuple[str, tuple[str, Completion]]]:
    for entry in _entries(file.open(), oldest_at):
        yield entry.fingerprint, (entry.job, entry.completion)


def _entries(file: Any, oldest_at: float) -> Iterator[Entry]:
    # What Beam opens on Cloud Storage has no lines but byte by byte: 100,000 entries took 16 s.
    with io.BufferedReader(file, _READ_BYTES) as lines:
        for entry in read_entries(lines):
            if entry.completion.answered_at >= oldest_at:
                yield entry


def journal_entries(spec: JobSpec, oldest_at: float) -> Iterator[Entry]:
    """Reads the journal of a job, without a graph; that of a first run is empty."""
    for metadata in FileSystems.match([f"{spec.journal_uri}*.jsonl"])[0].metadata_list:
        if metadata.last_updated_in_seconds >= oldest_at:
            file = FileSystems.open(metadata.path, compression_type=CompressionTypes.UNCOMPRESSED)
            yield from _entries(file, oldest_at)


class AskOnce(CountingDoFn):
    """Makes one `Request` of all rows of a fingerprint."""

    def process(
        self,
        group: tuple[str, Iterable[RenderedRow]],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[Request]:
        """Joins the rows of one fingerprint."""
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


class Reuse(AskOnce):
    """Takes one fingerprint with its rows and its earlier answers.

    Outputs one `Request` for all rows of a fingerprint; and `reused`, the rows that have an answer: `resumed` from
    this job, else `cached` from another.
    """

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job

    def process(
        self,
        group: tuple[str, Any],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[Any]:
        """Decides for one fingerprint."""
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
