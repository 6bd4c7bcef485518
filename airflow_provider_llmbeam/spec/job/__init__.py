"""The spec of a job, and the rules that its parts must satisfy together."""

from airflow_provider_llmbeam.spec.job.job import JobSpec
from airflow_provider_llmbeam.spec.job.stream_job import StreamJob

__all__ = ["JobSpec", "StreamJob"]
