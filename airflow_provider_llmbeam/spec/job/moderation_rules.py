"""Rules on the moderation of a job: what its answers and its inference must allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_llmbeam.spec.base import FieldFaultError
from airflow_provider_llmbeam.spec.sink import MilvusSink

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job.job import JobSpec


def moderation_fault(spec: JobSpec) -> FieldFaultError | None:
    """Returns why the moderation of a job cannot work, or `None`."""
    moderation = spec.safety.moderation
    if moderation is None:
        return None
    if spec.embedding is not None and "output" in moderation.on:
        return FieldFaultError(
            "safety.moderation.on", "must be ['input'] to embed: a vector is no text", moderation.on
        )
    if moderation.replaces and (spec.embedding is not None or spec.prompt.output_schema is not None):
        answers = "vectors" if spec.embedding is not None else "values of `prompt.output_schema`"
        return FieldFaultError(
            "safety.moderation.action",
            f"must be 'fail' or 'flag', also in `categories`, as the answers are {answers}: no text replaces them",
            moderation.action,
        )
    if moderation.flags and isinstance(spec.sink, MilvusSink):
        return FieldFaultError(
            "safety.moderation.action",
            "must be 'fail', also in `categories` and `on_unreadable`, with a sink of type 'milvus', which has no "
            "column for a flag",
            moderation.action,
        )
    return None
