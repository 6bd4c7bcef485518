"""The guard of a job as a job of its own: same journal, other model, limits and budget."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from apache_beam.ml.inference.base import PredictionResult

from airflow_provider_llmbeam.pipeline.elements import Request
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.moderation.verdict import VERDICT_SCHEMA
from airflow_provider_llmbeam.pipeline.run_inference import LLMModelHandler
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.limits import Batching
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from airflow_provider_llmbeam.spec.safety.moderation import Moderation


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
            "limits": moderation.limits,
            "batching": Batching(),
        }
    )


class GuardHandler(LLMModelHandler[Request]):
    """Handler of a guard, whose requests are not among the counts of the job that the progress shows."""

    def run_inference(
        self,
        batch: Sequence[Request],
        model: EngineThread,
        inference_args: dict[str, Any] | None = None,
    ) -> list[PredictionResult]:
        """Answers a batch; the prediction of a text without a verdict is a `Failure`."""
        prompts = [request.prompt for request in batch]
        fingerprints = [request.fingerprint for request in batch]
        audited = None if self._audit is None else partial(self._audit.batch, batch)
        outcomes = model.answer(
            prompts, fingerprints, self._throttled.signal_throttled, lambda counts: None, audited
        )
        return self.results(batch, outcomes)
