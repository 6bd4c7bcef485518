"""A Flink cluster together with the counts that the workers of a job write."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Protocol

from airflow_provider_llmbeam.exceptions import CloudUnavailableError
from airflow_provider_llmbeam.flink.cluster import FlinkCluster
from airflow_provider_llmbeam.jobs.cancellation import STOP_REQUEST_SECONDS
from airflow_provider_llmbeam.spec.protocol.counts import Counts


class Directory(Protocol):
    """The methods of a client of a filesystem that reading the counts uses."""

    def list(self, prefix: str) -> list[str]:
        """Returns the addresses of the files that begin with a prefix."""

    def read(self, uri: str) -> str:
        """Reads a text file."""

    def write(self, uri: str, text: str, within_seconds: float | None = None) -> None:
        """Writes a text file."""


class FlinkJobs(FlinkCluster):
    """Reads and cancels a job, and reads its counts.

    Flink shows the counters of a step when its bundle has ended, which in batch is a whole partition, so the
    workers write their counts to objects.

    Args:
        rest_url: Address of the REST API.
        files: Client of the filesystem of the counts.
        progress_prefix: Beginning of the addresses of the counts.
        stop_uri: File whose existence ends the workers.
    """

    def __init__(self, rest_url: str, files: Directory, progress_prefix: str, stop_uri: str) -> None:
        super().__init__(rest_url)
        self._files = files
        self._progress_prefix = progress_prefix
        self._stop_uri = stop_uri

    def cancel(self, job_id: str) -> None:
        """Requests the cancellation of a job, and has its workers record what is in flight and send nothing more.

        Flink 1.19 keeps the workers of a cancelled job: one of them sent 400 requests in 20 s more (measured). A
        job that has ended is left unchanged, and no stop file is written: it would end a later job of its name.

        Raises:
            CloudError: The cancellation was refused, or the workers could not be told.
        """
        with suppress(CloudUnavailableError):  # it may accept the cancellation
            if self.get(job_id, STOP_REQUEST_SECONDS).is_over:
                return
        super().cancel(job_id)
        self._files.write(self._stop_uri, "", STOP_REQUEST_SECONDS)

    def counts(self, job_id: str, *, running: bool) -> Counts:
        """Returns the sum of the counts.

        Raises:
            CloudError: They cannot be read.
        """
        found = (self._files.read(uri) for uri in self._files.list(self._progress_prefix) if uri.endswith(".json"))
        return sum(map(_counts, found), Counts())


def _counts(text: str) -> Counts:
    try:
        return Counts(**json.loads(text))
    except (ValueError, TypeError):  # replaced while it is read, or of another version
        return Counts()
