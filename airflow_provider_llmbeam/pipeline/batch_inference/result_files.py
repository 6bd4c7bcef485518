"""The result files of a batch-inference job."""

from __future__ import annotations

from airflow_provider_llmbeam.batch.job import BatchJob
from airflow_provider_llmbeam.batch.providers.base import BatchProvider
from airflow_provider_llmbeam.pipeline import storage


def result_files(provider: BatchProvider, job: BatchJob, prefix: str) -> list[str]:
    """Returns the addresses of the result files; those that the provider keeps are copied first.

    Args:
        provider: The provider.
        job: The job, which has ended.
        prefix: Beginning of the addresses of the copies.
    """
    found = [
        uri
        for place in job.results
        if place.startswith("gs://")
        for uri in storage.match(f"{place.rstrip('/')}/*.jsonl")
    ]
    for number, (_, chunks) in enumerate(provider.results(job)):
        uri = f"{prefix}-{number}.jsonl"
        with storage.create(uri, is_private=True) as file:
            for chunk in chunks:
                file.write(chunk)
        found.append(uri)
    return found
