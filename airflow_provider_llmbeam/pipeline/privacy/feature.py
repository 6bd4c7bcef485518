"""Personal data, as a feature of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.feature import Feature, Results
from airflow_provider_llmbeam.pipeline.privacy.cipher import WrongKeyError
from airflow_provider_llmbeam.pipeline.privacy.masker import Masker
from airflow_provider_llmbeam.pipeline.privacy.repair import settle_altered
from airflow_provider_llmbeam.pipeline.privacy.vault import add_masked, add_returned
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import Privacy

_TALLIES = "tallies"


class PrivacyFeature(Feature[Privacy]):
    """Masks personal data in rows and prompts, and restores it in what the sink stores.

    Rows are masked in `prompt_of_row`, where all that makes prompts finds them masked.
    """

    @staticmethod
    def part_of(spec: JobSpec) -> Privacy | None:
        """Returns `safety.privacy`."""
        return spec.safety.privacy

    def check_keys(self) -> None:
        """Checks the secret of the placeholders and the detectors.

        Raises:
            JobSpecError: The secret is missing, a detector cannot be used, or a detector of type `dlp` has no
                project or no account.
        """
        Masker(self.spec, self.part)

    def change_answers(self, results: Results, context: RunContext) -> Results:
        """Applies `on_altered`."""
        return settle_altered(results, self.spec, self.part, context)


def restore_answers(
    answered: Sequence[beam.PCollection], failed: beam.PCollection, spec: JobSpec
) -> tuple[Sequence[beam.PCollection], beam.PCollection, list[beam.PCollection]]:
    """Restores the answered rows of a job with privacy, for its sink.

    Args:
        answered: All `AnsweredRow`s that are stored.
        failed: All `FailedRow`s, which stay masked.
        spec: The job.

    Returns:
        The restored rows; the failed ones as the dead letter has them; and `Tally`s of what was masked.
    """
    if (privacy := spec.safety.privacy) is None:
        return answered, failed, []
    restored = [
        rows | f"Restore{number}" >> beam.ParDo(RestoreAnswers(spec, privacy)).with_outputs(_TALLIES, main="rows")
        for number, rows in enumerate((*answered, failed))
    ]
    *rows, sealed = (each["rows"] for each in restored)
    return rows, sealed, [each[_TALLIES] for each in restored]


class RestoreAnswers(beam.DoFn):
    """Restores answers, and the columns that the sink stores with them; counts what was masked in a bundle.

    Failed rows stay masked, and their vaults are sealed.
    """

    def __init__(self, spec: JobSpec, privacy: Privacy) -> None:
        super().__init__()
        self._spec, self._privacy = spec, privacy

    def setup(self) -> None:
        """Reads the key, once per worker."""
        self._masker = Masker(self._spec, self._privacy)

    def start_bundle(self) -> None:
        """Resets the counts."""
        self._tally = Tally()

    def process(self, element: AnsweredRow | FailedRow) -> Iterator[AnsweredRow | FailedRow]:
        """Restores an answered row, or seals a failed one.

        Raises:
            JobFailedError: It was masked with another key.
        """
        add_masked(self._tally.masked, element.row)
        if isinstance(element, FailedRow):
            yield replace(element, row=self._masker.sealed(element.row))
            return
        add_returned(self._tally.sums, element)
        try:
            yield self._masker.restore(element)
        except WrongKeyError:
            raise JobFailedError(
                f"`safety.privacy`: the secret in {self._privacy.key_env!r} is not the one with which this job "
                "masked its rows: it was changed while the job ran. Nothing was published, and no value was "
                "restored. A retry masks with the new secret, and sends the prompts with personal data again."
            ) from None

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        """Emits the counts."""
        yield beam.pvalue.TaggedOutput(_TALLIES, GlobalWindows.windowed_value(self._tally))
