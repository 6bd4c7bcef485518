"""The lease of a job: one process at a time runs it, so that none of its requests is sent twice.

On this machine it is a lock of the kernel, which ends with its process. On Cloud Storage it is an object that its
holder replaces every few seconds: another process takes it over when it has seen no change for `LEASE_SECONDS`. No
two clocks are compared, but to pass over an object that is old. On other filesystems there is no lease. Dataflow
needs none: it runs one job of a name at a time.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from google.api_core.exceptions import NotFound, PreconditionFailed

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger(__name__)

#: Time without a change after which the holder of an object has ended, in seconds; it replaces it more often.
LEASE_SECONDS = 45.0
RENEWAL_SECONDS = 10.0
#: Age of an object that has surely no holder, in spite of clocks that differ.
FORGOTTEN = timedelta(minutes=10)
#: Time for the processes of an earlier attempt to end, whose lock ends with them, in seconds.
LOCK_SECONDS = 15.0
#: Time for other jobs to merge their answers into the files of a sink, in seconds.
MERGE_SECONDS = 600.0
#: Interval between two attempts to get the lease, in seconds.
POLL_SECONDS = 1.0


@contextmanager
def leased(spec: JobSpec) -> Iterator[None]:
    """Holds the lease of a job during the body.

    Raises:
        JobFailedError: Another process runs the job.
    """
    with _held(spec, f"{spec.home_uri}lease"):
        yield


@contextmanager
def merging(spec: JobSpec) -> Iterator[None]:
    """Holds the lease of the files of a sink during the body, as merging them is reading and writing.

    Raises:
        JobFailedError: Other jobs have merged into the sink for `MERGE_SECONDS`.
    """
    uri, deadline = f"{spec.output_uri}.llmbeam/_merge", time.monotonic() + MERGE_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(_held(spec, uri))
                break
            except JobFailedError:
                if time.monotonic() >= deadline:
                    raise JobFailedError(
                        f"`sink.uri` {spec.output_uri!r}: other jobs have been merging into it for "
                        f"{MERGE_SECONDS:.0f} s. Nothing was published; a retry sends nothing to the model."
                    ) from None
        yield


@contextmanager
def _held(spec: JobSpec, uri: str) -> Iterator[None]:
    if (bucket_and_name := storage.cloud_object(uri)) is not None:
        with _leased_object(spec.name, uri, *bucket_and_name):
            yield
    elif storage.is_local(uri):
        with _locked_file(spec.name, Path(uri)):
            yield
    else:
        yield


@contextmanager
def _locked_file(job: str, path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _lock(file.fileno()):
            if time.monotonic() >= deadline:
                raise _held_error(job, str(path), path.read_text())
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(_holder())
        file.flush()
        yield


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # such as a network filesystem without locks
        _log.warning("The job runs without a lease, as its file cannot be locked: %s", error)
    return True


@contextmanager
def _leased_object(job: str, uri: str, bucket: Any, name: str) -> Iterator[None]:
    lease = ObjectLease(bucket, name)
    lease.take(job, uri)
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(lease, job, ended), name="llmbeam-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lease.release()


class ObjectLease:
    """An object that one process at a time replaces.

    Args:
        bucket: Its bucket, a `google.cloud.storage.Bucket`.
        name: Its name.
    """

    def __init__(self, bucket: Any, name: str) -> None:
        self._bucket = bucket
        self._name = name
        self._id = uuid.uuid4().hex
        self._generation = 0

    def take(self, job: str, uri: str) -> None:
        """Waits until no other process holds the lease, and takes it.

        Raises:
            JobFailedError: Another process renews it.
        """
        seen, deadline = 0, time.monotonic() + LEASE_SECONDS
        while not self._replace(0):
            with suppress(NotFound):  # released meanwhile
                blob = self._bucket.blob(self._name)
                blob.reload()
                if seen not in (0, blob.generation):
                    raise _held_error(job, uri, blob.download_as_text())
                seen = blob.generation
                is_forgotten = datetime.now(UTC) - blob.updated > FORGOTTEN
                if (is_forgotten or time.monotonic() >= deadline) and self._replace(seen):
                    return
            time.sleep(POLL_SECONDS)

    def renew(self) -> bool:
        """Replaces the object; returns whether this process still holds the lease."""
        return self._replace(self._generation)

    def release(self) -> None:
        """Deletes the object if this process still holds the lease."""
        with suppress(NotFound, PreconditionFailed):
            self._bucket.blob(self._name).delete(if_generation_match=self._generation)

    def _replace(self, generation: int) -> bool:
        blob = self._bucket.blob(self._name)
        blob.metadata = {"llmbeam-lease": self._id}
        try:
            blob.upload_from_string(_holder(), if_generation_match=generation)
        except PreconditionFailed:
            # A repeated request is refused as well, if the first one was carried out and its reply was lost.
            with suppress(NotFound):
                blob = self._bucket.blob(self._name)
                blob.reload()
                if (blob.metadata or {}).get("llmbeam-lease") == self._id:
                    self._generation = blob.generation
                    return True
            return False
        self._generation = blob.generation
        return True


def _renew(lease: ObjectLease, job: str, ended: threading.Event) -> None:
    while not ended.wait(RENEWAL_SECONDS):
        try:
            is_held = lease.renew()
        except Exception as error:  # noqa: BLE001 - the next renewal follows
            _log.warning("The lease of job %r could not be renewed: %s", job, error)
            continue
        if not is_held:
            _log.error(
                "Job %r ends: this process stood still for more than %.0f s, and another one has taken the job "
                "over. The answers so far are in the journal.",
                job,
                LEASE_SECONDS,
            )
            end_process()
            return


def end_process() -> None:
    """Ends this process, with the workers in it."""
    os.kill(os.getpid(), signal.SIGTERM)


def _holder() -> str:
    return json.dumps(
        {"host": socket.gethostname(), "pid": os.getpid(), "at": datetime.now(UTC).isoformat(timespec="seconds")}
    )


def _held_error(job: str, uri: str, holder: str) -> JobFailedError:
    return JobFailedError(
        f"Job {job!r} is being run by another process, which holds its lease {uri!r}: {holder[:200]}. This "
        "process sent and billed nothing. Wait for the end of the other one, or end it; a retry looks again."
    )
