"""The result files of a batch-inference job."""

from __future__ import annotations

import logging

from airflow_provider_llmbeam.batch.errors import BatchNotFoundError
from airflow_provider_llmbeam.batch.job import BatchJob
from airflow_provider_llmbeam.batch.providers.base import BatchProvider
from airflow_provider_llmbeam.pipeline import storage

_log = logging.getLogger("llmbeam")


def result_files(provider: BatchProvider, job: BatchJob, prefix: str) -> list[str]:
    """Returns the addresses of the result files; those that the provider keeps are copied first.

    A file that the provider has deleted is left out: its rows have no answer, and no later try finds it.

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
    for number, (name, chunks) in enumerate(provider.results(job)):
        uri = f"{prefix}-{number}.jsonl"
        try:
            with storage.create(uri, is_private=True) as file:
                for chunk in chunks:
                    file.write(chunk)
        except BatchNotFoundError as error:
            _log.warning(
                "Result file %s of batch-inference job %s no longer exists, and its rows are sent online: %s",
                name,
                job.name,
                error,
            )
        else:
            found.append(uri)
    return found
