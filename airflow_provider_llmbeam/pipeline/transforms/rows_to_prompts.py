"""Steps of the graph around `prompt_of_row`: from rows as read to prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, PLACE, FailedRow, RenderedRow, Row, RowPrompt
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.reporting.tally import TALLIES, Tally
from airflow_provider_llmbeam.spec.job import JobSpec


class RowStep(CountingDoFn):
    """A step whose rows without a result are output as `failed`."""

    def __init__(self, spec: JobSpec, context: RunContext = NO_RUN) -> None:
        super().__init__(context)
        self._spec = spec

    def setup(self) -> None:
        """Compiles the templates, reads the key of masks and loads the detectors, once per worker."""
        self._prompts = RowPrompts(self._spec)

    def _rendered(self, found: RowPrompt | FailedRow) -> tuple[str, RenderedRow] | beam.pvalue.TaggedOutput:
        if isinstance(found, FailedRow):
            return self._failed(found)
        row, fingerprint, prompt = found
        return fingerprint, (row, prompt.text, prompt.system, prompt.media, prompt.media_tokens)

    def _failed(self, failed: FailedRow) -> beam.pvalue.TaggedOutput:
        self.count("failed")
        return beam.pvalue.TaggedOutput(FAILED, failed)


class TakeRows(RowStep):
    """Takes the selected rows of a source, with their keys checked, and masked; counts them for each bundle.

    With a detector of type `dlp`, `privacy.dlp.steps` masks them.
    """

    def start_bundle(self) -> None:
        """Resets the numbers of rows."""
        super().start_bundle()
        self._rows = self._skipped = 0

    def process(self, row: Row | FailedRow) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        """Takes one row."""
        if not self._prompts.selects(row):
            return
        self._rows += 1
        if self._prompts.skips(row):
            self._skipped += 1
            self.count("skipped")
            return
        self.count("rows")
        place = None
        if isinstance(row, dict) and PLACE in row:
            place = row[PLACE]
            row = {name: value for name, value in row.items() if name != PLACE}
        row = self._prompts.take(row)
        if isinstance(row, FailedRow):
            yield self._failed(row)
        else:
            yield row if place is None else {**row, PLACE: place}

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        """Outputs the numbers of rows read and skipped."""
        super().finish_bundle()
        tally = Tally(read=self._rows, skipped=Counter(empty=self._skipped))
        yield beam.pvalue.TaggedOutput(TALLIES, GlobalWindows.windowed_value(tally))


class Render(RowStep):
    """Converts a row to `(fingerprint, RenderedRow)`."""

    def process(self, row: Row) -> Iterator[tuple[str, RenderedRow] | beam.pvalue.TaggedOutput]:
        """Renders one row."""
        yield self._rendered(self._prompts.render(row))
