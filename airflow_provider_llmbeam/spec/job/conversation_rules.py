"""Rules on the conversations of a job: what its other parts must allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import FieldFaultError
from airflow_provider_llmbeam.spec.model import VertexEndpointModel

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job.job import JobSpec


def conversation_fault(spec: JobSpec) -> FieldFaultError | None:
    """Returns why the conversations of a job cannot work, or `None`."""
    if spec.conversation is None:
        return None
    moderation, inference = spec.safety.moderation, spec.inference
    if spec.state_uri is None:
        return FieldFaultError(
            "state_uri",
            "this field is needed with `conversation`: the history of each key is kept there between runs",
            None,
        )
    if spec.embedding is not None:
        return FieldFaultError(
            "task", "must be 'generate' with `conversation`: a vector answers nobody", spec.task
        )
    if inference.mode != "online":
        return FieldFaultError(
            "inference.mode",
            "must be 'online' with `conversation`: a turn is sent with the answer before it, and batch inference "
            "answers after hours",
            inference.mode,
        )
    if inference.needs_pilot:
        return FieldFaultError(
            "inference.finish_by",
            f"must be left out with `conversation` and service tier {inference.service_tier!r}: the time of the "
            "run is that of its longest conversation, which is not predicted",
            inference.finish_by,
        )
    if spec.prompt.media:
        return FieldFaultError(
            "prompt.media",
            "must be left out with `conversation`: a history has texts alone",
            list(spec.prompt.media),
        )
    if isinstance(spec.model, VertexEndpointModel) and spec.model.request_format != "chat":
        return FieldFaultError(
            "model.request_format",
            "must be 'chat' for `conversation`: other formats have one text, and no turns",
            spec.model.request_format,
        )
    if moderation is not None and "output" in moderation.on:
        return FieldFaultError(
            "safety.moderation.on",
            "must be ['input'] with `conversation`: an answer is part of the next request before a guard has "
            "judged it",
            moderation.on,
        )
    if (privacy := spec.safety.privacy) is not None and privacy.on_altered == "repair":
        return FieldFaultError(
            "safety.privacy.on_altered",
            "must be 'keep' or 'fail' with `conversation`: the next turn is sent before an answer is repaired",
            privacy.on_altered,
        )
    return _source_fault(spec)


def _source_fault(spec: JobSpec) -> FieldFaultError | None:
    source = spec.source
    if source.on_duplicate_key == "allow":
        return FieldFaultError(
            "source.on_duplicate_key",
            "must be 'error' or 'dead_letter' with `conversation`: the key of a row names its turn",
            source.on_duplicate_key,
        )
    if source.share != (0.0, 1.0):
        return FieldFaultError(
            "source.share",
            "must be left out with `conversation`: it divides rows, and so the turns of one conversation",
            source.share,
        )
    return None


def refuse_conversation(spec: JobSpec, task: str) -> None:
    """Refuses a job with conversations for a task that sends single prompts.

    Args:
        spec: The job.
        task: What sends them, as the subject of a sentence.

    Raises:
        JobSpecError: The job has conversations.
    """
    if spec.conversation is not None:
        raise JobSpecError(
            f"`conversation`: {task} sends each prompt without its history, so that the answers would differ from "
            "those of the job; leave the field out here. Nothing was sent or billed."
        )
