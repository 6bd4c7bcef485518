"""The lease of a job: one process at a time runs it, so that none of its requests is sent twice.

On this machine it is a lock of the kernel, which ends with its process. On Cloud Storage it is an object that its
holder replaces every few seconds: another process takes it over when it has seen no change for `LEASE_SECONDS`, or
at once if the holder was a process of this machine that has ended. No two clocks are compared, but to pass over an
object that is old. On other filesystems there is no lease. Dataflow needs none: it runs one job of a name at a
time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.lease.launcher import Launcher
from airflow_provider_llmbeam.pipeline.lease.leased_object import renewed
from airflow_provider_llmbeam.pipeline.lease.locked_file import locked
from airflow_provider_llmbeam.spec.job import JobSpec

#: Time for other jobs to merge their answers into the files of a sink, in seconds.
MERGE_SECONDS = 600.0


@contextmanager
def leased(spec: JobSpec) -> Iterator[Launcher | None]:
    """Holds the lease of a job during the body.

    Yields:
        This process, for the workers of the job; `None` on a filesystem without leases.

    Raises:
        JobFailedError: Another process runs the job.
    """
    with _held(spec, spec.paths.lease_uri) as lease_id:
        yield None if lease_id is None else Launcher(spec.paths.lease_uri, lease_id)


@contextmanager
def merging(spec: JobSpec) -> Iterator[None]:
    """Holds the lease of the files of a sink during the body, as merging them is reading and writing.

    A job that replaces the files holds it, too.

    Raises:
        JobFailedError: Other jobs have merged into the sink for `MERGE_SECONDS`.
    """
    held = (
        f"`sink.uri` {spec.paths.output_uri!r}: other jobs have been writing to it for {MERGE_SECONDS:.0f} s. "
        "Nothing was published; a retry sends nothing to the model."
    )
    with waiting_for(spec, f"{spec.paths.output_uri}.llmbeam/_merge", held):
        yield


@contextmanager
def waiting_for(spec: JobSpec, uri: str, held: str) -> Iterator[None]:
    """Holds a lease during the body, for which it waits up to `MERGE_SECONDS`.

    Args:
        spec: The job that needs it.
        uri: Address of the lease.
        held: Message of the error if others hold it for so long.

    Raises:
        JobFailedError: Others hold it.
    """
    deadline = time.monotonic() + MERGE_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(_held(spec, uri))
                break
            except JobFailedError:
                if time.monotonic() >= deadline:
                    raise JobFailedError(held) from None
        yield


@contextmanager
def _held(spec: JobSpec, uri: str) -> Iterator[str | None]:
    lease_id = uuid.uuid4().hex
    if (bucket_and_name := storage.cloud_object(uri)) is not None:
        with renewed(spec.name, uri, *bucket_and_name, lease_id):
            yield lease_id
    elif storage.is_local(uri):
        with locked(spec.name, Path(uri), lease_id):
            yield lease_id
    else:
        yield None
