"""Steps that have the texts of rows inspected by a service, each one once, before the rows are masked."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio
from apache_beam.io.components.adaptive_throttler import ThrottlingSignaler
from apache_beam.transforms.window import GlobalWindows

from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, FailedRow, Row
from airflow_provider_llmbeam.pipeline.privacy.dlp.inspector import inspector_of
from airflow_provider_llmbeam.pipeline.privacy.dlp.store import (
    pattern_of,
    read_findings,
    store_of,
)
from airflow_provider_llmbeam.pipeline.privacy.finding import Cell, Inspected
from airflow_provider_llmbeam.pipeline.privacy.masker import Masker
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import RowStep
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NAMESPACE
from airflow_provider_llmbeam.spec.safety import Privacy

#: Number of texts that a worker packs into requests together: a batch has about 10 MB if texts are long.
BATCH_TEXTS = 5_000
_CELLS, _FOUND, _TALLIES = "cells", "found", "tallies"
_ID_BYTES = 16


@dataclass(frozen=True, repr=False)
class Unmasked:
    """A value that is not masked. It is shown without its text: Beam logs elements of some steps at level DEBUG.

    Attributes:
        value: A `Row`, a `FailedRow` or a `Cell`.
    """

    value: Any


#: A text, and the ids of the rows that have it; they may be many.
Text = tuple[Cell, Iterable[tuple[Unmasked, bytes]]]
#: Name of a text, see `FindingStore`, and what was found in it.
Found = tuple[str, Inspected]


def mask_inspected_rows(
    rows: beam.PCollection, unreadable: beam.PCollection, spec: JobSpec, context: RunContext
) -> tuple[beam.PCollection, beam.PCollection, list[beam.PCollection]]:
    """Has the texts of rows inspected, and masks the rows, for a job with a detector of type `dlp`.

    No row is passed on before all texts are inspected, so that an inspection that is not permitted ends the job
    before a request to the model.

    Args:
        rows: `Row`s.
        unreadable: `FailedRow`s.
        spec: The job.
        context: Its run.

    Returns:
        The masked rows, the `FailedRow`s, and `Tally`s of the inspection in zero or one collections.
    """
    if (privacy := spec.safety.privacy) is None or privacy.dlp is None:
        return rows, unreadable, []
    every = (rows, unreadable) | "AllRows" >> beam.Flatten()
    read = every | "TextsOfRows" >> beam.ParDo(_TextsOfRows(spec, privacy)).with_outputs(_CELLS, main="rows")
    looked_up = (
        {"texts": read[_CELLS], "stored": _stored(rows.pipeline, spec)}
        | "ByText" >> beam.CoGroupByKey()
        | "LookUpText" >> beam.ParDo(_LookUp()).with_outputs(_FOUND, main="texts")
    )
    inspected = (
        looked_up["texts"]
        | "BatchTexts" >> beam.BatchElements(min_batch_size=BATCH_TEXTS, max_batch_size=BATCH_TEXTS)
        | "InspectTexts" >> beam.ParDo(_InspectTexts(spec)).with_outputs(_TALLIES, main="found")
    )
    found = (looked_up[_FOUND], inspected["found"]) | "AllFound" >> beam.Flatten()
    groups = {"rows": read["rows"], "found": found} | "ByRow" >> beam.CoGroupByKey()
    mask = beam.ParDo(_MaskInspectedRows(spec, context)).with_outputs(FAILED, main="rows")
    masked = groups | "MaskRows" >> mask
    return masked["rows"], masked[FAILED], [inspected[_TALLIES]]


def _stored(root: beam.Pipeline, spec: JobSpec) -> beam.PCollection:
    """Reads what earlier runs and estimates have found, as `Found`; there may be nothing."""
    return (
        root
        | "FindingsPattern" >> beam.Create([pattern_of(spec.paths.inspections_uri)])
        | "MatchFindings" >> fileio.MatchAll(fileio.EmptyMatchTreatment.ALLOW)
        | "ReadFindings" >> beam.FlatMap(lambda metadata: read_findings(metadata.path))
    )


class _TextsOfRows(beam.DoFn):
    """Outputs rows by their ids; and their texts with these ids, by their names."""

    def __init__(self, spec: JobSpec, privacy: Privacy) -> None:
        self._spec, self._privacy = spec, privacy

    def setup(self) -> None:
        self._masker = Masker(self._spec, self._privacy)
        self._store = store_of(self._spec)

    def process(self, row: Row | FailedRow) -> Iterator[tuple[bytes, Unmasked] | beam.pvalue.TaggedOutput]:
        # Of its content: a repeated bundle gives a row the same id, and equal rows have the same findings.
        row_id = hashlib.sha256(pickle.dumps(row)).digest()[:_ID_BYTES]
        yield row_id, Unmasked(row)
        for cell in self._masker.cells(row):
            yield beam.pvalue.TaggedOutput(_CELLS, (self._store.name_of(cell), (Unmasked(cell), row_id)))


class _LookUp(beam.DoFn):
    """Outputs the texts to inspect; and of others `(row id, Found)`, for each row, if something was found."""

    def process(self, group: tuple[str, Any]) -> Iterator[Text | beam.pvalue.TaggedOutput]:
        name, joined = group
        stored = next(iter(joined["stored"]), None)
        if stored is None:
            first, _ = next(iter(joined["texts"]))
            yield first.value, joined["texts"]
        elif stored:
            for _, row_id in joined["texts"]:
                yield beam.pvalue.TaggedOutput(_FOUND, (row_id, (name, stored)))


class _InspectTexts(beam.DoFn):
    """Outputs `(row id, Found)` for each row with a text in which something was found."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._throttled = ThrottlingSignaler(NAMESPACE)

    def setup(self) -> None:
        self._inspector, self._store = inspector_of(self._spec), store_of(self._spec)

    def start_bundle(self) -> None:
        self._sums = Counter[str]()

    def process(self, batch: Sequence[Text]) -> Iterator[tuple[bytes, Found]]:
        inspection = self._inspector.inspect([cell for cell, _ in batch])
        self._store.write(inspection.found)
        if seconds := int(inspection.throttled_seconds):
            self._throttled.signal_throttled(seconds)
        self._sums["inspection_requests"] += inspection.requests
        self._sums["inspected_bytes"] += inspection.text_bytes
        for cell, occurrences in batch:
            if found := inspection.found[cell]:
                for _, row_id in occurrences:
                    yield row_id, (self._store.name_of(cell), found)

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        tally = GlobalWindows.windowed_value(Tally(sums=self._sums))
        yield beam.pvalue.TaggedOutput(_TALLIES, tally)


class _MaskInspectedRows(RowStep):
    """Masks rows whose texts a service has inspected; an element is a group of equal ones."""

    def setup(self) -> None:
        super().setup()
        self._store = store_of(self._spec)

    def process(self, group: tuple[bytes, Any]) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        _, joined = group
        found = dict(joined["found"])

        def inspect(cells: Collection[Cell]) -> dict[Cell, Inspected]:
            return {cell: found.get(self._store.name_of(cell), ()) for cell in cells}

        for unmasked in joined["rows"]:
            row = self._prompts.prepare(unmasked.value, inspect)
            if isinstance(unmasked.value, FailedRow):  # counted as it was taken
                yield beam.pvalue.TaggedOutput(FAILED, row)
            else:
                yield self._failed(row) if isinstance(row, FailedRow) else row
