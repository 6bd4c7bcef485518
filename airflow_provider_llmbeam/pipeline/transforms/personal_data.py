"""Restores the answers of a job with privacy before they are written."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow
from airflow_provider_llmbeam.pipeline.privacy.cipher import WrongKeyError
from airflow_provider_llmbeam.pipeline.privacy.masker import Masker
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
