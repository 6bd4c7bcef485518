"""Handlers of further requests: what the progress of a job shows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from apache_beam.ml.inference.base import PredictionResult

from airflow_provider_llmbeam.pipeline.audit.trail import record_of
from airflow_provider_llmbeam.pipeline.elements import Request
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.reporting.metrics import count
from airflow_provider_llmbeam.pipeline.run_inference import LLMModelHandler
from airflow_provider_llmbeam.spec.protocol.counts import Counts


class FurtherHandler(LLMModelHandler[Request]):
    """Handler of further requests, which are not among the counts of the job that the progress shows."""

    def count(self, counts: Counts) -> None:
        """Counts nothing."""

    def run_inference(
        self,
        batch: Sequence[Request],
        model: EngineThread,
        inference_args: dict[str, Any] | None = None,
    ) -> list[PredictionResult]:
        """Answers a batch; the prediction of a request without an answer is a `Failure`."""
        prompts = [request.prompt for request in batch]
        fingerprints = [request.fingerprint for request in batch]
        audited = record_of(self._audit, batch)
        outcomes = model.answer(prompts, fingerprints, self._throttled.signal_throttled, self.count, audited)
        return self.results(batch, outcomes)


class RepairHandler(FurtherHandler):
    """Handler of requests that repair answers: their cost counts, and their rows have been counted before."""

    def count(self, counts: Counts) -> None:
        """Counts what was sent and billed."""
        count(replace(counts, answered=0, failed=0))

    @classmethod
    def beside(cls, handler: LLMModelHandler[Request]) -> Self:
        """Returns a handler with the settings of that of the job, and with a part in its budget."""
        made = cls.__new__(cls)
        made.__dict__.update(handler.__dict__)
        return made
