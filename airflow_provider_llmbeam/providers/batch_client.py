"""The interface of the providers' batch-inference APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from airflow_provider_llmbeam.providers.batch_job import BatchJob, UploadedFile

#: Opens the request file at a URI for reading.
OpenFile = Callable[[str], IO[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of the batch inference of a provider.

    Attributes:
        max_rows: Maximum number of rows of one job.
        max_bytes: Maximum size of the request file of one job, in bytes.
        max_jobs: Maximum number of jobs at the same time; `None` if the provider documents no such limit.
    """

    max_rows: int
    max_bytes: int
    max_jobs: int | None = None


#: Maximum number of vectors of one job: its results are harvested as a whole, which took 1.9 GiB for these many of
#: 3,072 numbers. OpenAI takes 50,000 (platform.openai.com/docs/api-reference/batch/create).
MAX_VECTORS = 10_000


class BatchProvider(Protocol):
    """The batch-inference API of a provider.

    Every method blocks, and retries transient errors for some seconds. Besides its own errors each raises
    `BatchUnavailableError`, `BatchDeniedError` and `BatchRefusedError`.
    """

    limits: BatchLimits

    def submit(self, display_name: str, uri: str, open_file: OpenFile, size: int) -> BatchJob:
        """Creates a job. It is not sent again after a failure that leaves open whether there is a job.

        Args:
            display_name: Name by which the job is found again.
            uri: Request file, JSON lines in the format of the provider. Vertex AI reads it from Cloud Storage; for
                the others it is uploaded.
            open_file: Opens the request file.
            size: Size of the request file, in bytes.

        Raises:
            JobSpecError: The provider refuses the job.
            BatchQuotaError: Another job has to end first.
            UncertainSubmitError: The job may have been created.
        """

    def find(self, prefix: str) -> list[BatchJob]:
        """Returns the jobs whose display name starts with a prefix, the newest first."""

    def get(self, name: str) -> BatchJob:
        """Returns a job.

        Raises:
            BatchNotFoundError: There is no such job.
        """

    def cancel(self, name: str) -> None:
        """Cancels a job; does nothing if it has ended.

        Raises:
            BatchNotFoundError: There is no such job.
        """

    def delete(self, job: BatchJob) -> None:
        """Deletes a job that has ended, and its result files; ignores what is missing.

        Its request file is one of `uploads`, as are those of jobs that were never created.
        """

    def deletable(self, jobs: Sequence[BatchJob]) -> list[BatchJob]:
        """Returns those jobs of which `delete` would delete something.

        These are all jobs, except for OpenAI, which keeps a batch forever, without its files.
        """

    def uploads(self, prefix: str) -> list[UploadedFile]:
        """Returns the request files that were uploaded for jobs whose display name starts with a prefix.

        There are none for Vertex AI, whose request files are on the caller's bucket.
        """

    def delete_upload(self, name: str) -> None:
        """Deletes an uploaded request file; does nothing if it does not exist."""

    def results(self, job: BatchJob) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yields the name and the content, in chunks, of each result file that the provider keeps.

        Yields nothing for Vertex AI, which writes to the directories on Cloud Storage in `job.results`.

        Raises:
            BatchNotFoundError: A file has expired.
        """
