"""The parts of a model handler that an author of a Beam pipeline may give as plain data."""

from __future__ import annotations

from typing import Any, Self

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model.generation import Embedding, Generation
from airflow_provider_llmbeam.spec.model.model import Model


class HandlerParts(SpecModel):
    """The parts of a model handler, as values.

    Attributes:
        model: The model.
        generation: Parameters of the answer.
        limits: Quotas, timeouts and retries.
        batching: Batch size and length buckets.
        embedding: Parameters of vectors; `None` for texts.
    """

    model: Model
    generation: Generation
    limits: Limits
    batching: Batching
    embedding: Embedding | None

    @classmethod
    def of(cls, model: Any, generation: Any, limits: Any, batching: Any, embedding: Any) -> Self:
        """Builds the parts from values or plain data.

        Raises:
            JobSpecError: Names each invalid field, its value and the expected value.
        """
        parts = {"generation": generation, "limits": limits, "batching": batching, "embedding": embedding}
        return cls.parse({"model": model, **parts})
