"""What commands that send a few prompts, or none, say at their end: who keeps the answers, and what is billed."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.job import JobSpec

#: The sentence of a command that has exported a source by a query.
QUERY_RAN = " The query of the source ran once: BigQuery bills it."


def keeper_of(spec: JobSpec) -> str:
    """Returns what keeps the answers that are sent now, for a sentence."""
    run = spec.airflow_run
    if run is None or spec.cache is not None or not run.names_job:
        return "the job keeps the answers"
    return f"run {run.run_id!r} keeps the answers, and others use them only with `cache` or `job_name`"
