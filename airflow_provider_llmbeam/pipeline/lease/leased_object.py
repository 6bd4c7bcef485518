"""A lease on Cloud Storage: an object that its holder replaces every few seconds."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from google.api_core.exceptions import NotFound, PreconditionFailed

from airflow_provider_llmbeam.pipeline.lease.holder import POLL_SECONDS, Holder, held_error

_log = logging.getLogger(__name__)

#: Time without a change after which the holder of an object has ended, in seconds; it replaces it more often.
LEASE_SECONDS = 45.0
RENEWAL_SECONDS = 10.0
#: Time without a renewal after which a holder sends nothing, in seconds. It is shorter than `LEASE_SECONDS`, as a
#: process that stood still goes on before its next renewal tells it that another one has taken the job over.
SURE_SECONDS = 30.0
#: Time of failed renewals after which a holder ends, in seconds.
UNRENEWED_SECONDS = 600.0
#: Age of an object that has surely no holder, in spite of clocks that differ.
FORGOTTEN = timedelta(minutes=10)

#: Leases that this process holds.
_held: set[ObjectLease] = set()


def are_sure() -> bool:
    """Returns whether no other process can have taken over a lease of this process."""
    return all(lease.silent_seconds() < SURE_SECONDS for lease in tuple(_held))


@contextmanager
def renewed(job: str, uri: str, bucket: Any, name: str, lease_id: str) -> Iterator[None]:
    """Holds the lease of an object, and renews it, during the body.

    Raises:
        JobFailedError: Another process renews it.
    """
    lease = ObjectLease(bucket, name, lease_id)
    lease.take(job, uri)
    _held.add(lease)
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(lease, job, ended), name="llmbeam-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _held.discard(lease)
        lease.release()


class ObjectLease:
    """An object that one process at a time replaces.

    Args:
        bucket: Its bucket, a `google.cloud.storage.Bucket`.
        name: Its name.
        lease_id: Identity of the lease of this process.
    """

    def __init__(self, bucket: Any, name: str, lease_id: str) -> None:
        self._bucket = bucket
        self._name = name
        self._id = lease_id
        self._generation = 0
        self._renewed_at = -math.inf

    def silent_seconds(self) -> float:
        """Returns the time since the start of the last request that renewed the lease, in seconds."""
        return _now() - self._renewed_at

    def take(self, job: str, uri: str) -> None:
        """Waits until no other process holds the lease, and takes it.

        Raises:
            JobFailedError: Another process renews it.
        """
        seen, deadline = 0, time.monotonic() + LEASE_SECONDS
        while not self._replace(0):
            with suppress(NotFound, PreconditionFailed):  # released or renewed meanwhile
                blob, content = self._read()
                if seen not in (0, blob.generation):
                    raise held_error(job, uri, content)
                seen = blob.generation
                holder = Holder.parsed(content)
                has_ended = (
                    time.monotonic() >= deadline
                    or (holder is not None and holder.has_ended())
                    or datetime.now(UTC) - blob.updated > FORGOTTEN
                )
                if has_ended and self._replace(seen):
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
        started_at = _now()
        if is_held := self._is_replaced(generation):
            self._renewed_at = started_at
        return is_held

    def _is_replaced(self, generation: int) -> bool:
        blob = self._bucket.blob(self._name)
        try:
            blob.upload_from_string(
                Holder.this_process(self._id).model_dump_json(), if_generation_match=generation
            )
        except PreconditionFailed:
            # A repeated request is refused as well, if the first one was carried out and its reply was lost.
            with suppress(NotFound, PreconditionFailed):
                blob, content = self._read()
                holder = Holder.parsed(content)
                if holder is not None and holder.lease_id == self._id:
                    self._generation = blob.generation
                    return True
            return False
        self._generation = blob.generation
        return True

    def _read(self) -> tuple[Any, str]:
        blob = self._bucket.blob(self._name)
        blob.reload()
        return blob, blob.download_as_text(if_generation_match=blob.generation)


def _renew(lease: ObjectLease, job: str, ended: threading.Event) -> None:
    while not ended.wait(RENEWAL_SECONDS):
        try:
            is_held = lease.renew()
        except Exception as error:  # noqa: BLE001 - the next renewal follows
            if lease.silent_seconds() >= UNRENEWED_SECONDS:
                _log.error(
                    "Job %r ends: its lease could not be renewed for %.0f s: %s. The answers so far are in the "
                    "journal; a retry sends the rest.",
                    job,
                    UNRENEWED_SECONDS,
                    error,
                )
                end_process()
                return
            _log.warning(
                "The lease of job %r could not be renewed: %s. After %.0f s without a renewal nothing is sent "
                "until the next one.",
                job,
                error,
                SURE_SECONDS,
            )
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


def _now() -> float:
    """Returns a clock that goes on while the machine sleeps, where the system has one (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def end_process() -> None:
    """Ends this process at once, with the workers in it.

    After a signal they would go on with what is in flight, and publish (`launch.interruption`).
    """
    os._exit(1)
