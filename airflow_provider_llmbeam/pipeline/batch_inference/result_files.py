"""The result files of a batch-inference job."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchProvider
from airflow_provider_llmbeam.providers.errors import ApiNotFoundError, ApiUnavailableError

_log = logging.getLogger("llmbeam")

#: Waits before a damaged file is read again, in seconds: a proxy may have sent another one, or only its beginning.
READ_AGAIN_SECONDS: Sequence[float] = (1.0, 5.0)


def result_files(provider: BatchProvider, job: BatchJob, prefix: str) -> list[str]:
    """Returns the addresses of the result files; those that the provider keeps are copied first.

    A file that the provider has deleted is left out: its rows have no answer, and no later try finds it.

    Args:
        provider: The provider.
        job: The job, which has ended.
        prefix: Beginning of the addresses of the copies.

    Raises:
        ApiUnavailableError: A file cannot be read, or what was sent in its place has no line of a result.
    """
    found = [
        uri
        for place in job.results
        if place.startswith("gs://")
        for uri in storage.match(f"{place.rstrip('/')}/*.jsonl")
    ]
    for number, (name, _) in enumerate(provider.results(job)):
        uri = f"{prefix}-{number}.jsonl"
        try:
            _copy(provider, job, name, uri)
        except ApiNotFoundError as error:
            _log.warning(
                "Result file %s of batch-inference job %s no longer exists, and its rows are sent online: %s",
                name,
                job.name,
                error,
            )
        else:
            found.append(uri)
    return found


def _copy(provider: BatchProvider, job: BatchJob, name: str, uri: str) -> None:
    """Copies a result file, again if what is read is another file or a part of it; a part is better than none."""
    for seconds in (*READ_AGAIN_SECONDS, None):
        lines, is_whole = _copied(dict(provider.results(job))[name], uri)
        if is_whole:
            return
        what = "ends within a line" if lines else "has no line with a JSON object"
        if seconds is not None:
            _log.warning("Result file %s of job %s %s. Reading it again in %.0f s.", name, job.name, what, seconds)
            time.sleep(seconds)
    if not lines:
        raise ApiUnavailableError(
            f"Result file {name} of batch-inference job {job.name} {what}; a proxy may have sent another file. "
            "The answers of the job are paid for, and the next try reads them. If the provider itself returns "
            "this file, delete the job there: the next try then sends its rows online."
        )


def _copied(chunks: Iterator[bytes], uri: str) -> tuple[int, bool]:
    """Writes a file; returns its number of JSON objects, one a line, and whether it ends with one, or is empty."""
    lines, last, is_blank = 0, b"\n", True
    with storage.create(uri, is_private=True) as file:
        for chunk in chunks:
            file.write(chunk)
            lines += (last + chunk).count(b"\n{")
            last = chunk[-1:] or last
            is_blank = is_blank and not chunk.strip()
    return lines, is_blank or (lines > 0 and last in b"}\n")
