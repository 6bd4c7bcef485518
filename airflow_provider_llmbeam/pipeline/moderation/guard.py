"""The guard of a job as a job of its own: same journal, other model, limits and budget."""

from __future__ import annotations

from airflow_provider_llmbeam.pipeline.moderation.verdict import VERDICT_SCHEMA
from airflow_provider_llmbeam.spec.inference import Inference
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
            "inference": Inference(),
        }
    )
