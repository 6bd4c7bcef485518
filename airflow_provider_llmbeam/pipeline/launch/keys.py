"""The check of the key of a model on the machine that sends, before a row is read."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.job import JobSpec


def check_model(spec: JobSpec) -> None:
    """Opens the clients of the model, and of the stages and judges of its cascade, which fails without a key.

    Raises:
        JobSpecError: The client cannot be opened.
    """
    from airflow_provider_llmbeam.pipeline.cascade.stages import stage_jobs
    from airflow_provider_llmbeam.providers.backends import open_backend

    cascade = spec.cascade
    stages = () if cascade is None else stage_jobs(spec, cascade)
    for judge in () if cascade is None else cascade.judges:
        open_backend(judge.model, judge.generation, None, None)
    for job in (*stages, spec):
        open_backend(job.model, job.generation, job.prompt.output_schema, job.embedding)
