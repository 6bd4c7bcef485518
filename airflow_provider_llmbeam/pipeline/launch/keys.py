"""What a job needs on the machine where it runs: its keys are checked once, before a row is read."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.job import JobSpec


def check_privacy(spec: JobSpec) -> None:
    """Checks the key and the detectors of `safety.privacy`.

    Raises:
        JobSpecError: The secret is missing, a detector cannot be used, or a detector of type `dlp` has no project
            or no account.
    """
    if (privacy := spec.safety.privacy) is not None:
        from airflow_provider_llmbeam.pipeline.privacy.cipher import cipher_of
        from airflow_provider_llmbeam.pipeline.privacy.detection import detection_of
        from airflow_provider_llmbeam.pipeline.privacy.dlp.inspector import inspector_of

        inspector_of(spec)
        cipher_of(privacy.key_env)
        detection_of(privacy.detectors)


def check_model(spec: JobSpec) -> None:
    """Opens the client of the model once, before a row is read, which fails if a key is missing.

    Raises:
        JobSpecError: The client cannot be opened.
    """
    from airflow_provider_llmbeam.providers.backends import open_backend

    open_backend(spec.model, spec.generation, spec.prompt.output_schema, spec.embedding)


def check_guard(spec: JobSpec) -> None:
    """Opens the client of the guard model once, as `check_model` does, if the job has one.

    Raises:
        JobSpecError: The client cannot be opened.
    """
    from airflow_provider_llmbeam.providers.backends import open_backend

    if (moderation := spec.safety.moderation) is not None:
        open_backend(moderation.model, moderation.generation, None, None)
