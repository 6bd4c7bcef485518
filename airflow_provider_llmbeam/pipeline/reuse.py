"""What is paid for already is not asked again: the journal first, then equal prompts once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from airflow_provider_llmbeam.engine.journal import read_entries
from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, RenderedRow, Request, Row
from airflow_provider_llmbeam.pipeline.progress import PROGRESS

RESUMED = "resumed"


def reuse(
    root: beam.Pipeline, rendered: beam.PCollection, journal_uri: str
) -> tuple[beam.PCollection, list[beam.PCollection]]:
    """Sorts rows by whether their answer is there already.

    A first run has no journal, and is spared the join: answers of this very run are found by their batch.

    Args:
        root: The pipeline.
        rendered: `(fingerprint, RenderedRow)`.
        journal_uri: Directory of the job's earlier answers.

    Returns:
        `Request`s, one per fingerprint, for all of its rows; and the `AnsweredRow`s that need none, in so many
        collections as there are kinds of earlier answers.
    """
    pattern = f"{journal_uri}*.jsonl"
    if not FileSystems.match([pattern], limits=[1])[0].metadata_list:
        groups = rendered | "ByFingerprint" >> beam.GroupByKey()
        return groups | "Ask" >> beam.ParDo(AskOnce()), []
    journal = (
        root
        | "MatchJournal" >> fileio.MatchFiles(pattern, empty_match_treatment=fileio.EmptyMatchTreatment.ALLOW)
        | "ReadJournal" >> fileio.ReadMatches(compression=CompressionTypes.UNCOMPRESSED)
        | "JournalEntries" >> beam.FlatMap(_read_segment)
    )
    sorted_rows = (
        {"rows": rendered, "journal": journal}
        | "ByFingerprint" >> beam.CoGroupByKey()
        | "Reuse" >> beam.ParDo(Reuse()).with_outputs(RESUMED, main="requests")
    )
    return sorted_rows["requests"], [sorted_rows[RESUMED]]


def _read_segment(file: fileio.ReadableFile) -> Iterator[tuple[str, Completion]]:
    with file.open() as lines:
        yield from read_entries(iter(lines))


class AskOnce(beam.DoFn):
    """Makes one `Request` of all rows of a fingerprint."""

    def process(self, group: tuple[str, Iterable[RenderedRow]]) -> Iterator[Request]:
        """Joins the rows of one fingerprint."""
        fingerprint, found = group
        rows: list[Row] = []
        prompt: Prompt | None = None
        for row, text, system, media in found:
            rows.append(row)
            prompt = prompt or Prompt(text, system, media)
        if prompt is not None:
            PROGRESS.add("duplicates", len(rows) - 1)
            yield Request(fingerprint, tuple(rows), prompt)


class Reuse(AskOnce):
    """Takes one fingerprint with its rows and its journal entries.

    Outputs one `Request` for all rows of a fingerprint; and `resumed`, the rows that the journal answers.
    """

    def process(self, group: tuple[str, Any]) -> Iterator[Any]:
        """Decides for one fingerprint."""
        fingerprint, found = group
        completion = next(iter(found["journal"]), None)
        if completion is None:
            yield from super().process((fingerprint, found["rows"]))
            return
        for row, *_ in found["rows"]:
            PROGRESS.add("resumed")
            answered = AnsweredRow(row, fingerprint, completion, "resumed")
            yield beam.pvalue.TaggedOutput(RESUMED, answered)
