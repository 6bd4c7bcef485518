"""The form and the age of the answers that a job takes, also from the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.outcome import REFUSED, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.output import VectorParser
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import Embedding

_DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class AnswerForm:
    """The form of a job's answers: a vector, a value of an output schema, or a text.

    An answer of another form under the fingerprint of a prompt would end the job in its sink. Values are not
    validated against the schema again: it is part of the fingerprint, and they were valid when they were recorded.

    Attributes:
        embedding: Parameters of the vectors, if the job embeds.
        has_schema: Whether answers are values of an output schema.
        max_repairs: Maximum number of further requests for an invalid answer; one that was refused after fewer is
            requested again.
        refused_since: Unix time; answers that were refused before are requested again.
    """

    embedding: Embedding | None
    has_schema: bool
    max_repairs: int = 0
    refused_since: float = 0.0

    @classmethod
    def of(
        cls,
        embedding: Embedding | None,
        output_schema: Mapping[str, Any] | None,
        max_repairs: int = 0,
        refused_since: float = 0.0,
    ) -> AnswerForm:
        """Returns the form of the answers of a job."""
        has_schema = output_schema is not None
        return cls(embedding, has_schema, max_repairs if has_schema else 0, refused_since)

    def accepts(self, outcome: Outcome) -> bool:
        """Returns whether an answer has this form, or a refused one need not be requested again.

        A vector that cannot be used is a fault of the server, which may be repaired, and no refusal of the model.
        """
        if isinstance(outcome, Failure):
            if self.embedding is not None or outcome.kind not in REFUSED:
                return False
            is_repaired = outcome.kind != "invalid_output" or outcome.max_repairs >= self.max_repairs
            return is_repaired and outcome.answered_at >= self.refused_since
        return self._fits(outcome)

    def _fits(self, completion: Completion) -> bool:
        if self.embedding is None:
            return bool(completion.text.strip()) and (self.has_schema or completion.parsed is None)
        if not isinstance(completion.parsed, list):
            return False
        reply = Reply(
            text="",
            finish_reason=completion.finish_reason,
            tokens=NO_TOKENS,
            model=completion.model,
            vector=completion.parsed,
        )
        try:
            VectorParser(self.embedding.dimensions).parse(reply)
        except RequestError:
            return False
        return True


def answer_form(spec: JobSpec, context: RunContext) -> AnswerForm:
    """Returns the form of the answers of a job.

    With `limits.retry_refused`, answers that were refused in an earlier run are requested again. This run begins
    with its pilot, before the launch.
    """
    launches = (each for each in (context.started_at, context.batch_since) if each is not None)
    refused_since = min(launches) if spec.limits.retry_refused else 0.0
    return AnswerForm.of(spec.embedding, spec.prompt.output_schema, spec.prompt.max_repairs, refused_since)


def oldest_useful_at(spec: JobSpec, now: float) -> float:
    """Returns the Unix time before which answers are requested again."""
    max_age_days = spec.cache.max_age_days if spec.cache else None
    return 0.0 if max_age_days is None else now - max_age_days * _DAY_SECONDS
