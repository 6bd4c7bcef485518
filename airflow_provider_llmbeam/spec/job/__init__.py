"""The spec of a job, and the rules that its parts must satisfy together."""

from airflow_provider_llmbeam.spec.job.job import JobSpec

__all__ = ["JobSpec"]
