"""Files of prompts, as a feature of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import apache_beam as beam

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, RenderedRow, RowPrompt
from airflow_provider_llmbeam.pipeline.feature import Feature, Prompts
from airflow_provider_llmbeam.pipeline.media.uploads import delete_uploads
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import RowStep
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.prompt import Media
from airflow_provider_llmbeam.spec.runner import DetachedRunner


class MediaFeature(Feature[tuple[Media, ...]]):
    """Identifies the files of prompts by what they hold, and deletes those that were uploaded."""

    @staticmethod
    def part_of(spec: JobSpec) -> tuple[Media, ...]:
        """Returns `prompt.media`."""
        return spec.prompt.media

    def change_prompts(self, prompts: Prompts, context: RunContext) -> Prompts:
        """Identifies the files of prompts, several at once."""
        identified = (
            prompts.rendered
            | "BatchMedia" >> beam.BatchElements(min_batch_size=16, max_batch_size=64)
            | "IdentifyMedia" >> beam.ParDo(IdentifyMedia(self.spec, context)).with_outputs(FAILED, main="rows")
        )
        return replace(prompts, rendered=identified["rows"], failed=[*prompts.failed, identified[FAILED]])

    def before_publication(self) -> None:
        """Deletes the uploads of a job whose launch does not wait for it, see `delete_uploads_after`."""
        if isinstance(self.spec.runner, DetachedRunner):
            delete_uploads(self.spec)


class IdentifyMedia(RowStep):
    """Converts batches of `(fingerprint, RenderedRow)`, whose files are identified together."""

    def process(
        self, batch: Sequence[tuple[str, RenderedRow]]
    ) -> Iterator[tuple[str, RenderedRow] | beam.pvalue.TaggedOutput]:
        """Identifies the files of some rows."""
        prompts = [RowPrompt(rendered[0], fingerprint, Prompt(*rendered[1:])) for fingerprint, rendered in batch]
        yield from map(self._rendered, self._prompts.identify(prompts))
