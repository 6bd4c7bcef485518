"""The guard of a job as a job of its own, with the same journal, and the questions to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.moderation.verdict import VERDICT_SCHEMA
from airflow_provider_llmbeam.spec.inference import Inference
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.limits import Batching
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from airflow_provider_llmbeam.spec.safety.moderation import PLACE, Moderation


def guard_job(spec: JobSpec, moderation: Moderation) -> JobSpec:
    """Returns the job that asks the guard, with the journal of the job."""
    return spec.model_copy(
        update={
            "prompt": PromptTemplate(
                template="{{ row.text }}",
                output_schema=VERDICT_SCHEMA if moderation.verdict == "json" else None,
            ),
            "task": "generate",
            "embedding": None,
            "model": moderation.model,
            "generation": moderation.generation,
            "limits": moderation.limits.model_copy(update={"budget": spec.limits.budget}),
            "batching": Batching(),
            "inference": Inference(),
            "cascade": None,
        }
    )


class Questions:
    """Makes the questions to a guard.

    Args:
        guard: The guard's job, see `guard_job`.
        moderation: The moderation.
    """

    def __init__(self, guard: JobSpec, moderation: Moderation) -> None:
        self._fingerprint = guard.fingerprinter()
        self._moderation = moderation

    def of(self, text: str) -> tuple[str, Prompt]:
        """Returns the fingerprint of the question about a text, and the question."""
        question = Prompt(self._moderation.template.replace(PLACE, text), self._moderation.system)
        return self._fingerprint(question.text, question.system), question


class MakeQuestions(beam.DoFn):
    """Turns `(text, element)` into what `Ask` takes."""

    def __init__(self, guard: JobSpec, moderation: Moderation) -> None:
        self._guard, self._moderation = guard, moderation

    def setup(self) -> None:
        """Makes what computes the fingerprints, once per worker."""
        self._questions = Questions(self._guard, self._moderation)

    def process(self, element: tuple[str, Any]) -> Iterator[tuple[str, tuple[str, str | None, Any]]]:
        """Makes the question about one text."""
        text, judged = element
        fingerprint, question = self._questions.of(text)
        yield fingerprint, (question.text, question.system, judged)
