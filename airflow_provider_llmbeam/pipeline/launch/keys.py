"""The check of the key of a model on the machine that sends, before a row is read."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.job import JobSpec


def check_model(spec: JobSpec) -> None:
    """Opens the client of the model once, before a row is read, which fails if a key is missing.

    Raises:
        JobSpecError: The client cannot be opened.
    """
    from airflow_provider_llmbeam.providers.backends import open_backend

    open_backend(spec.model, spec.generation, spec.prompt.output_schema, spec.embedding)
