"""Steps of the graph: rows are masked after they are read, and answers restored before they are written."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.pipeline.elements import FAILED, AnsweredRow, FailedRow, Row
from airflow_provider_llmbeam.pipeline.privacy.masker import Masker
from airflow_provider_llmbeam.pipeline.privacy.usage import returned_of
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import Privacy


def without_altered(
    answered: tuple[beam.PCollection, ...], privacy: Privacy | None
) -> tuple[tuple[beam.PCollection, ...], list[beam.PCollection]]:
    """Applies `privacy.on_altered`: returns the answered rows, and those that fail by it."""
    if privacy is None or privacy.on_altered == "keep":
        return answered, []
    checked = [
        rows | f"FailAltered{number}" >> beam.ParDo(FailAltered()).with_outputs(FAILED, main="answered")
        for number, rows in enumerate(answered)
    ]
    return tuple(each["answered"] for each in checked), [each[FAILED] for each in checked]


def restored(answered: tuple[beam.PCollection, ...], spec: JobSpec) -> tuple[beam.PCollection, ...]:
    """Restores the answered rows of a job with privacy, for its sink."""
    privacy = spec.safety.privacy
    if privacy is None:
        return answered
    return tuple(
        rows | f"Restore{number}" >> beam.ParDo(RestoreAnswers(spec, privacy))
        for number, rows in enumerate(answered)
    )


class MaskRows(CountingDoFn):
    """Masks rows; those that are not sent are output as `failed`, masked as well."""

    def __init__(self, spec: JobSpec, privacy: Privacy, progress_prefix: str | None = None) -> None:
        super().__init__(progress_prefix)
        self._spec, self._privacy = spec, privacy

    def setup(self) -> None:
        """Reads the key and loads the detectors, once per worker."""
        self._masker = Masker(self._spec, self._privacy)

    def process(self, row: Row | FailedRow) -> Iterator[Row | beam.pvalue.TaggedOutput]:
        """Masks one row."""
        masked = self._masker.row(row)
        if not isinstance(masked, FailedRow):
            yield masked
            return
        if not isinstance(row, FailedRow):
            self.count("failed")
        yield beam.pvalue.TaggedOutput(FAILED, masked)


class RestoreAnswers(beam.DoFn):
    """Restores the answers, and the columns that the sink stores with them."""

    def __init__(self, spec: JobSpec, privacy: Privacy) -> None:
        super().__init__()
        self._spec, self._privacy = spec, privacy

    def setup(self) -> None:
        """Reads the key, once per worker."""
        self._masker = Masker(self._spec, self._privacy)

    def process(self, answered: AnsweredRow) -> Iterator[AnsweredRow]:
        """Restores one row."""
        yield self._masker.restored(answered)


class FailAltered(beam.DoFn):
    """Outputs answers in which a placeholder was altered as `failed`."""

    def process(self, answered: AnsweredRow) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        """Checks one answer."""
        found = returned_of(answered)
        if not found.altered:
            yield answered
            return
        message = (
            f"the model altered a placeholder of personal data in its answer: {found.first_altered!r}; "
            "`safety.privacy.on_altered` is 'fail'. The answer stays in the journal, so that it is not paid again"
        )
        failure = _failure_of(answered.completion, message)
        origin = "fresh" if answered.origin == "repaired" else answered.origin
        yield beam.pvalue.TaggedOutput(FAILED, FailedRow(answered.row, failure, origin))


def _failure_of(completion: Completion, message: str) -> Failure:
    return Failure(
        kind="invalid_output",
        message=message,
        http_status=200,
        attempts=completion.attempts,
        rejections=completion.rejections,
        rejected_at=completion.rejected_at,
        sheds=completion.sheds,
        input_tokens=completion.input_tokens,
        output_tokens=completion.output_tokens,
        cached_tokens=completion.cached_tokens,
        cost_nano_usd=completion.cost_nano_usd,
        answered_at=completion.answered_at,
        failed_at=completion.answered_at,
        service_tier=completion.service_tier,
    )
