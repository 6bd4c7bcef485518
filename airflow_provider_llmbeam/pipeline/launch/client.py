"""The client of a job's model, which is opened once before a row is read."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.job import JobSpec


def check_model(spec: JobSpec) -> None:
    """Opens the client of the model once, before a row is read, which fails if a key is missing.

    Raises:
        JobSpecError: The client cannot be opened.
    """
    from airflow_provider_llmbeam.engine.backends import open_backend

    open_backend(spec.model, spec.generation, spec.prompt.output_schema, spec.embedding)


def check_guard(spec: JobSpec) -> None:
    """Opens the client of the guard model once, as `check_model` does, if the job has one.

    Raises:
        JobSpecError: The client cannot be opened.
    """
    from airflow_provider_llmbeam.engine.backends import open_backend

    if (moderation := spec.safety.moderation) is not None:
        open_backend(moderation.model, moderation.generation, None, None)
