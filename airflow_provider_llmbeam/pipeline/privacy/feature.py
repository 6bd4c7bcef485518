"""Personal data, as a feature of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

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


class PrivacyFeature(Feature):
    """Masks personal data in rows and prompts, and restores it in what the sink stores.

    Rows are masked in `prompt_of_row`, where all that makes prompts finds them masked.
    """

    @classmethod
    def is_in(cls, spec: JobSpec) -> bool:
        """Returns whether rows are masked."""
        return spec.safety.privacy is not None

    @property
    def privacy(self) -> Privacy:
        """The `safety.privacy` of the job."""
        assert self.spec.safety.privacy is not None
        return self.spec.safety.privacy

    def check_keys(self) -> None:
        """Checks the secret of the placeholders and the detectors.

        Raises:
            JobSpecError: The secret is missing, a detector cannot be used, or a detector of type `dlp` has no
                project or no account.
        """
        Masker(self.spec, self.privacy)

    def change_answers(self, results: Results, context: RunContext) -> Results:
        """Applies `on_altered`."""
        return settle_altered(results, self.spec, self.privacy, context)


def restore_answers(
    answered: Sequence[beam.PCollection], failed: beam.PCollection, spec: JobSpec
) -> tuple[Sequence[beam.PCollection], list[beam.PCollection]]:
    """Restores the answered rows of a job with privacy, for its sink.

    Args:
        answered: All `AnsweredRow`s that are stored.
        failed: All `FailedRow`s, which stay masked.
        spec: The job.

    Returns:
        The restored rows, and `Tally`s of what was masked.
    """
    if (privacy := spec.safety.privacy) is None:
        return answered, []
    restored = [
        rows | f"Restore{number}" >> beam.ParDo(RestoreAnswers(spec, privacy)).with_outputs(_TALLIES, main="rows")
        for number, rows in enumerate(answered)
    ]
    counted = failed | "CountMasked" >> beam.ParDo(CountMasked()).with_outputs(_TALLIES)
    return [each["rows"] for each in restored], [each[_TALLIES] for each in (*restored, counted)]


class CountMasked(beam.DoFn):
    """Counts what was masked in the rows of a bundle, and what their answers have of the placeholders."""

    def start_bundle(self) -> None:
        """Resets the counts."""
        self._masked, self._sums = Counter[str](), Counter[str]()

    def count(self, element: AnsweredRow | FailedRow) -> None:
        """Counts one row."""
        add_masked(self._masked, element.row)
        if isinstance(element, AnsweredRow):
            add_returned(self._sums, element)

    def process(self, element: FailedRow) -> None:
        """Counts a row that is not restored."""
        self.count(element)

    def finish_bundle(self) -> Iterator[beam.pvalue.TaggedOutput]:
        """Emits the counts."""
        tally = Tally(masked=self._masked, sums=self._sums)
        yield beam.pvalue.TaggedOutput(_TALLIES, GlobalWindows.windowed_value(tally))


class RestoreAnswers(CountMasked):
    """Restores the answers, and the columns that the sink stores with them."""

    def __init__(self, spec: JobSpec, privacy: Privacy) -> None:
        super().__init__()
        self._spec, self._privacy = spec, privacy

    def setup(self) -> None:
        """Reads the key, once per worker."""
        self._masker = Masker(self._spec, self._privacy)

    def process(self, answered: AnsweredRow) -> Iterator[AnsweredRow]:  # type: ignore[override]
        """Restores one row.

        Raises:
            JobFailedError: It was masked with another key.
        """
        self.count(answered)
        try:
            yield self._masker.restore(answered)
        except WrongKeyError:
            raise JobFailedError(
                f"`safety.privacy`: the secret in {self._privacy.key_env!r} is not the one with which this job "
                "masked its rows: it was changed while the job ran. Nothing was published, and no value was "
                "restored. A retry masks with the new secret, and sends the prompts with personal data again."
            ) from None
