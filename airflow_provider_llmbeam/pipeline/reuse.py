"""What is paid for already is not asked again: the journal first, then equal prompts once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio
from apache_beam.io.filesystem import CompressionTypes

from airflow_provider_llmbeam.engine.journal import read_entries
from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, Request, Row
from airflow_provider_llmbeam.pipeline.progress import PROGRESS

RESUMED = "resumed"


class ReadJournal(beam.PTransform):
    """Reads the job's earlier answers as `(fingerprint, Completion)`; none is right for a first run."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._pattern = f"{directory}*.jsonl"

    def expand(self, root: beam.Pipeline) -> beam.PCollection:
        """Matches and reads the segments."""
        return (
            root
            | fileio.MatchFiles(self._pattern, empty_match_treatment=fileio.EmptyMatchTreatment.ALLOW)
            | fileio.ReadMatches(compression=CompressionTypes.UNCOMPRESSED)
            | beam.FlatMap(_read_segment)
        )


def _read_segment(file: fileio.ReadableFile) -> Iterator[tuple[str, Completion]]:
    with file.open() as lines:
        yield from read_entries(iter(lines))


class Reuse(beam.DoFn):
    """Takes one fingerprint with its rows and its journal entries.

    Outputs one `Request` for all rows of a fingerprint; and `resumed`, the rows that the journal answers.
    """

    def process(self, group: tuple[str, dict[str, Iterable[Any]]]) -> Iterator[Request | beam.pvalue.TaggedOutput]:
        """Decides for one fingerprint."""
        fingerprint, found = group
        completion = next(iter(found["journal"]), None)
        if completion is not None:
            for rendered in found["rows"]:
                PROGRESS.add("resumed")
                answered = AnsweredRow(rendered.row, fingerprint, completion, "resumed")
                yield beam.pvalue.TaggedOutput(RESUMED, answered)
            return
        rows: list[Row] = []
        prompt: Prompt | None = None
        for rendered in found["rows"]:
            rows.append(rendered.row)
            prompt = prompt or rendered.prompt
        if prompt is not None:
            PROGRESS.add("duplicates", len(rows) - 1)
            yield Request(fingerprint, tuple(rows), prompt)
