"""Rules on the key of Cloud KMS of a job: where it must be, and what takes no key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError
from airflow_provider_llmbeam.spec.encryption import key_location, location_fault
from airflow_provider_llmbeam.spec.model import GeminiModel, Model
from airflow_provider_llmbeam.spec.runner import DataflowRunner

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec


def stores_encrypted(model: Model, kms_key_name: str | None) -> bool:
    """Whether the beginning of prompts that a provider stores is encrypted with the key of a job, if any."""
    if kms_key_name is None:
        return True
    return isinstance(model, GeminiModel) and bool(model.project) and model.location == key_location(kms_key_name)


def encryption_fault(spec: JobSpec, *, has_project: bool) -> FieldFaultError | None:
    """Returns why a part of a job cannot be encrypted with its key, or `None`.

    Args:
        spec: The job.
        has_project: Whether the model has a project, or may get one from its connection.
    """
    if spec.kms_key_name is None:
        return None
    gemini = spec.model if isinstance(spec.model, GeminiModel) else None
    is_batch = spec.inference.mode != "online"
    locations = {
        "runner.location": spec.runner.location if isinstance(spec.runner, DataflowRunner) else None,
        "source.location": getattr(spec.source, "location", None),
        "sink.location": getattr(spec.sink, "location", None),
        "model.location": gemini.location if gemini is not None and gemini.project and is_batch else None,
    }
    if fault := location_fault(spec.kms_key_name, locations):
        return fault
    keeps_files = is_batch or (gemini is not None and spec.prompt.media)
    if not keeps_files or (gemini is not None and has_project):
        return None
    return FieldFaultError(
        "kms_key_name",
        f"must be left out with {'batch inference' if is_batch else 'media'}: {spec.model.api.service} keeps "
        "files with prompts, and takes no key of Cloud KMS; Gemini on Vertex AI (`model.project`) takes one",
        NOT_SHOWN,
        spec.model.name,
    )
