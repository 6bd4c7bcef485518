"""Rules on the privacy of a job: what its other parts must allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError
from airflow_provider_llmbeam.spec.runner import DataflowRunner

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec


def privacy_fault(spec: JobSpec) -> FieldFaultError | None:
    """Returns why the personal data of a job cannot be masked, or `None`."""
    privacy = spec.safety.privacy
    if privacy is None:
        return None
    if spec.prompt.media and privacy.columns is None:
        return FieldFaultError(
            "safety.privacy.columns",
            "this field is needed with `prompt.media`: files are sent as they are, and only texts are masked; "
            "name the columns whose texts are",
            None,
        )
    if privacy.on_altered != "keep" and spec.embedding is not None:
        return FieldFaultError(
            "safety.privacy.on_altered",
            "must be 'keep' to embed: a vector has no placeholders",
            privacy.on_altered,
        )
    if privacy.on_altered == "repair" and spec.prompt.media:
        return FieldFaultError(
            "safety.privacy.on_altered",
            "must be 'keep' or 'fail' with `prompt.media`: a repair would send and bill the files again",
            privacy.on_altered,
        )
    runner = spec.runner
    if (
        isinstance(runner, DataflowRunner)
        and runner.container_image is None
        and privacy.key_env not in runner.environment_secrets
    ):
        return FieldFaultError(
            "runner.environment_secrets",
            f"the workers need {privacy.key_env!r} for `safety.privacy`: name the secret that holds it, "
            f"{{{privacy.key_env!r}: 'projects/…/secrets/…/versions/latest'}}",
            NOT_SHOWN,
        )
    return None
