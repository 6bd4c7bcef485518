"""Steps of the graph: rows are masked after they are read, and answers restored before they are written."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import apache_beam as beam

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, AnsweredRow, FailedRow, Row
from airflow_provider_llmbeam.pipeline.privacy.cipher import WrongKeyError
from airflow_provider_llmbeam.pipeline.privacy.dlp.table import Cell, Inspected
from airflow_provider_llmbeam.pipeline.privacy.masker import Inspect, Masker
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.transforms.inspect_rows import inspected_rows, required_store
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import Privacy


def restored(answered: tuple[beam.PCollection, ...], spec: JobSpec) -> tuple[beam.PCollection, ...]:
    """Restores the answered rows of a job with privacy, for its sink."""
    privacy = spec.safety.privacy
    if privacy is None:
        return answered
    return tuple(
        rows | f"Restore{number}" >> beam.ParDo(RestoreAnswers(spec, privacy))
        for number, rows in enumerate(answered)
    )


def masked_rows(
    rows: beam.PCollection, spec: JobSpec, privacy: Privacy, context: RunContext
) -> tuple[beam.pvalue.DoOutputsTuple, list[beam.PCollection]]:
    """Masks rows, and has their texts inspected before if there is a detector of type `dlp`.

    Args:
        rows: `Row`s, and `FailedRow`s that could not be read.
        spec: The job.
        privacy: Its `safety.privacy`.
        context: Its run.

    Returns:
        The outputs `rows` and `failed`, and the `Tally`s of the inspection in zero or one collections.
    """
    if privacy.dlp is None:
        mask = beam.ParDo(MaskRows(spec, privacy, context))
        return rows | "MaskRows" >> mask.with_outputs(FAILED, main="rows"), []
    groups, tallies = inspected_rows(rows, spec, privacy)
    mask = beam.ParDo(MaskInspectedRows(spec, privacy, context))
    return groups | "MaskRows" >> mask.with_outputs(FAILED, main="rows"), [tallies]


class _Mask(CountingDoFn):
    def __init__(self, spec: JobSpec, privacy: Privacy, context: RunContext = NO_RUN) -> None:
        super().__init__(context)
        self._spec, self._privacy = spec, privacy

    def setup(self) -> None:
        """Reads the key and loads the detectors, once per worker."""
        self._masker = Masker(self._spec, self._privacy)

    def _masked(
        self, row: Row | FailedRow, inspect: Inspect | None = None
    ) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        masked = self._masker.row(row, inspect)
        if not isinstance(masked, FailedRow):
            yield masked
            return
        if not isinstance(row, FailedRow):
            self.count("failed")
        yield beam.pvalue.TaggedOutput(FAILED, masked)


class MaskRows(_Mask):
    """Masks rows; those that are not sent are output as `failed`, masked as well."""

    def process(self, row: Row | FailedRow) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        """Masks one row."""
        yield from self._masked(row)


class MaskInspectedRows(_Mask):
    """Does the same with rows whose texts a service has inspected; an element is a group of `inspected_rows`."""

    def setup(self) -> None:
        """Reads the key and loads the detectors, once per worker."""
        super().setup()
        self._store = required_store(self._spec)

    def process(self, group: tuple[bytes, Any]) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        """Masks the rows of one group, which are equal."""
        _, joined = group
        found = dict(joined["found"])

        def inspect(cells: Collection[Cell]) -> dict[Cell, Inspected]:
            return {cell: found.get(self._store.name_of(cell), ()) for cell in cells}

        for unmasked in joined["rows"]:
            yield from self._masked(unmasked.value, inspect)


class RestoreAnswers(beam.DoFn):
    """Restores the answers, and the columns that the sink stores with them."""

    def __init__(self, spec: JobSpec, privacy: Privacy) -> None:
        super().__init__()
        self._spec, self._privacy = spec, privacy

    def setup(self) -> None:
        """Reads the key, once per worker."""
        self._masker = Masker(self._spec, self._privacy)

    def process(self, answered: AnsweredRow) -> Iterator[AnsweredRow]:
        """Restores one row.

        Raises:
            JobFailedError: It was masked with another key.
        """
        try:
            yield self._masker.restored(answered)
        except WrongKeyError:
            raise JobFailedError(
                f"`safety.privacy`: the secret in {self._privacy.key_env!r} is not the one with which this job "
                "masked its rows: it was changed while the job ran. Nothing was published, and no value was "
                "restored. A retry masks with the new secret, and sends the prompts with personal data again."
            ) from None
