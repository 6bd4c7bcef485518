"""The lease of a job: one process at a time runs it, so that none of its requests is sent twice.

On this machine it is a lock of the kernel, which ends with its process. On Cloud Storage it is an object that its
holder replaces every few seconds: another process takes it over when it has seen no change for `LEASE_SECONDS`, or
at once if the holder was a process of this machine that has ended. No two clocks are compared. On other
filesystems there is no lease. Dataflow needs none: it runs one job of a name at a time.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from google.api_core.exceptions import NotFound, PreconditionFailed
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_llmbeam.engine.pacing.gate import Admission
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.local_files import open_no_link
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger(__name__)

#: Interval between two attempts to get a lease, in seconds.
POLL_SECONDS = 1.0
#: Time for the processes of an earlier attempt to end, in seconds.
WAIT_SECONDS = 15.0
#: Time for other jobs to merge their answers into the files of a sink, in seconds.
MERGE_SECONDS = 600.0
#: Time without a change after which the holder of an object has ended, in seconds; it replaces it more often.
LEASE_SECONDS = 45.0
RENEWAL_SECONDS = 10.0
#: Time without a renewal after which a holder sends nothing, in seconds. It is shorter than `LEASE_SECONDS`, as a
#: process that stood still goes on before its next renewal tells it that another one has taken the job over.
SURE_SECONDS = 30.0
#: Time of failed renewals after which a holder ends, in seconds.
UNRENEWED_SECONDS = 600.0
#: Time without a renewal after which a launcher has ended, in seconds; a failed renewal is repeated meanwhile.
SILENT_SECONDS = 2 * LEASE_SECONDS
#: Time after which a process that does not hold its lease for sure asks again whether it may send, in seconds.
_PAUSE_SECONDS = 0.5

#: Number of characters of a lease that a message shows.
_SHOWN = 300

#: Leases on Cloud Storage that this process holds.
_held: set[ObjectLease] = set()


@contextmanager
def hold_lease(spec: JobSpec) -> Iterator[Launcher | None]:
    """Holds the lease of a job during the body.

    Yields:
        This process, for the workers of the job; `None` on a filesystem without leases.

    Raises:
        JobFailedError: Another process runs the job.
    """
    uri = spec.paths.lease_uri
    with _hold(spec.name, uri, WAIT_SECONDS) as lease_id:
        yield None if lease_id is None else Launcher(uri, lease_id)


@contextmanager
def hold_sink(spec: JobSpec) -> Iterator[None]:
    """Holds the lease of the files of a sink during the body, as merging them is reading and writing.

    A job that replaces the files holds it, too.

    Raises:
        JobFailedError: Other jobs have merged into the sink for `MERGE_SECONDS`.
    """
    held = (
        f"`sink.uri` {spec.paths.output_uri!r}: other jobs have been writing to it for {MERGE_SECONDS:.0f} s. "
        "Nothing was published; a retry sends nothing to the model."
    )
    with wait_for_lease(spec, f"{spec.paths.output_uri}.llmbeam/_merge", held):
        yield


@contextmanager
def wait_for_lease(spec: JobSpec, uri: str, held: str) -> Iterator[None]:
    """Holds a lease during the body, for which it waits up to `MERGE_SECONDS`.

    Args:
        spec: The job that needs it.
        uri: Address of the lease.
        held: Message of the error if others hold it for so long.

    Raises:
        JobFailedError: Others hold it.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(_hold(spec.name, uri, MERGE_SECONDS))
        except JobFailedError:
            raise JobFailedError(held) from None
        yield


@contextmanager
def _hold(job: str, uri: str, wait_seconds: float) -> Iterator[str | None]:
    lease_id = uuid.uuid4().hex
    if (bucket_and_name := storage.cloud_object(uri)) is not None:
        with ObjectLease(*bucket_and_name, lease_id).hold(job, uri, wait_seconds):
            yield lease_id
    elif storage.is_local(uri):
        with hold_lock(job, Path(uri), lease_id, wait_seconds):
            yield lease_id
    else:
        yield None


class LeasedAdmission:
    """A governor that admits nothing while another process may have taken over a lease of this one.

    Args:
        admission: The governor.
    """

    def __init__(self, admission: Admission) -> None:
        self._admit = admission.admit
        self.settle = admission.settle
        self.rejected = admission.rejected
        self.share_among = admission.share_among

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """See `Admission.admit`."""
        return self._admit(now, tokens, backlog) if holds_its_leases() else _PAUSE_SECONDS


def holds_its_leases() -> bool:
    """Returns whether no other process can have taken over a lease of this process."""
    return all(lease.silent_seconds() < SURE_SECONDS for lease in tuple(_held))


class Holder(BaseModel):
    """The process that holds a lease, as its content names it.

    Attributes:
        lease_id: Identity of the lease; that of the next holder differs.
        host: Name of its machine.
        pid: Number of the process.
        at: Time at which the lease was written, ISO 8601.
        kernel: Boot of its kernel and namespace of `pid`, see `_kernel`; `None` if not known.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    lease_id: str
    host: str
    pid: int = Field(ge=1, lt=2**31)
    at: str
    kernel: str | None = None

    @classmethod
    def this_process(cls, lease_id: str) -> Holder:
        """Returns this process as the holder of a lease, now."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(lease_id=lease_id, host=socket.gethostname(), pid=os.getpid(), at=at, kernel=_kernel())

    @classmethod
    def parse(cls, text: str | bytes) -> Holder | None:
        """Returns the holder that a lease names; `None` if it names none."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    @property
    def is_on_this_kernel(self) -> bool:
        """Whether the process is one of this kernel, and of its namespace of process numbers."""
        return self.kernel is not None and self.kernel == _kernel()

    def has_ended(self) -> bool:
        """Returns whether the process has certainly ended; `False` also for one that cannot be seen from here."""
        if self.is_on_this_kernel:
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
            except OSError:  # a process of another user
                return False
        return False


@cache
def _kernel() -> str | None:
    """Returns what tells two kernels, and two containers of one kernel, apart; `None` on other systems than Linux.

    Source: random(4) for `boot_id`, namespaces(7) for the link.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return None


def _held_error(job: str, uri: str, content: str) -> JobFailedError:
    return JobFailedError(
        f"Job {job!r} is being run by another process, which holds its lease {uri!r}: {content[:_SHOWN]}. This "
        "process sent and billed nothing. Wait for the end of the other one, or end it; a retry checks again."
    )


@contextmanager
def hold_lock(job: str, path: Path, lease_id: str, wait_seconds: float) -> Iterator[None]:
    """Holds the lock of a file, which names this process as its holder, during the body.

    Raises:
        JobFailedError: Another process has held the lock for `wait_seconds`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_no_link(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666), "a+") as file:
        deadline = time.monotonic() + wait_seconds
        while not _lock(file.fileno()):
            if time.monotonic() >= deadline:
                file.seek(0)
                raise _held_error(job, str(path), file.read(_SHOWN))
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(Holder.this_process(lease_id).model_dump_json())
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


def _is_locked(path: Path) -> bool:
    """Returns whether a process of this machine holds the lock of a file; also if files cannot be locked here.

    A process that asks for the lock in this moment is refused, and asks again.
    """
    with os.fdopen(open_no_link(path, os.O_RDONLY)) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


class ObjectLease:
    """A lease on Cloud Storage: an object that one process at a time replaces, with a precondition.

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

    @contextmanager
    def hold(self, job: str, uri: str, wait_seconds: float) -> Iterator[None]:
        """Holds the lease, and renews it, during the body.

        Raises:
            JobFailedError: Another process still renews it after `wait_seconds`.
        """
        self.take(job, uri, wait_seconds)
        _held.add(self)
        has_ended = threading.Event()
        thread = threading.Thread(target=_renew, args=(self, job, has_ended), name="llmbeam-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()
            _held.discard(self)
            with suppress(NotFound, PreconditionFailed):  # another process has it
                self._bucket.blob(self._name).delete(if_generation_match=self._generation)

    def silent_seconds(self) -> float:
        """Returns the time since the start of the last request that renewed the lease, in seconds."""
        return _now() - self._renewed_at

    def take(self, job: str, uri: str, wait_seconds: float) -> None:
        """Waits until no other process holds the lease, and takes it.

        Raises:
            JobFailedError: Another process still renews it after `wait_seconds`.
        """
        seen, seen_at, deadline = 0, 0.0, time.monotonic() + wait_seconds
        while not self._replace(0):
            with suppress(NotFound, PreconditionFailed):  # released or renewed meanwhile
                blob, content = self._read()
                now, holder = time.monotonic(), Holder.parse(content)
                if blob.generation != seen:
                    if seen and now >= deadline:
                        raise _held_error(job, uri, content)
                    seen, seen_at = blob.generation, now
                is_over = now - seen_at >= LEASE_SECONDS or (holder is not None and holder.has_ended())
                if is_over and self._replace(seen):
                    return
            time.sleep(POLL_SECONDS)

    def renew(self) -> bool:
        """Replaces the object; returns whether this process still holds the lease."""
        return self._replace(self._generation)

    def _replace(self, generation: int) -> bool:
        started_at, blob = _now(), self._bucket.blob(self._name)
        try:
            content = Holder.this_process(self._id).model_dump_json()
            blob.upload_from_string(content, if_generation_match=generation)
        except PreconditionFailed:
            # A repeated request is refused as well, if the first one was carried out and its reply was lost.
            try:
                blob, content = self._read()
            except (NotFound, PreconditionFailed):
                return False
            if (holder := Holder.parse(content)) is None or holder.lease_id != self._id:
                return False
        self._generation, self._renewed_at = blob.generation, started_at
        return True

    def _read(self) -> tuple[Any, str]:
        blob = self._bucket.blob(self._name)
        blob.reload()
        return blob, blob.download_as_text(if_generation_match=blob.generation)


def _renew(lease: ObjectLease, job: str, has_ended: threading.Event) -> None:
    """Renews a lease until the end of the body that holds it, or ends this process."""
    fault = None
    while fault is None and not has_ended.wait(RENEWAL_SECONDS):
        try:
            if not lease.renew():
                fault = (
                    f"this process stood still for more than {LEASE_SECONDS:.0f} s, and another one has taken the "
                    "job over"
                )
        except Exception as error:  # noqa: BLE001 - the next renewal follows
            if lease.silent_seconds() >= UNRENEWED_SECONDS:
                fault = f"its lease could not be renewed for {UNRENEWED_SECONDS:.0f} s: {error}"
            else:
                _log.warning(
                    "The lease of job %r could not be renewed: %s. After %.0f s without a renewal nothing is sent "
                    "until the next one.",
                    job,
                    error,
                    SURE_SECONDS,
                )
    if fault is not None:
        _log.error("Job %r ends: %s. The answers so far are in the journal; a retry sends the rest.", job, fault)
        end_process()


def _now() -> float:
    """Returns a clock that goes on while the machine sleeps, where the system has one (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def end_process() -> None:
    """Ends this process at once, with the workers in it.

    After a signal they would go on with what is in flight, and publish (`launch.interruption`).
    """
    os._exit(1)


@dataclass
class Launcher:
    """The launcher of a job, whose workers may outlive it on a portable runner, and then go on sending.

    Attributes:
        uri: Address of the lease of the job.
        lease_id: Identity of the lease that the launcher holds.
    """

    uri: str
    lease_id: str
    _content: bytes = field(default=b"", init=False)
    _read_at: float = field(default=-math.inf, init=False)
    _changed_at: float = field(default=-math.inf, init=False)

    def has_ended(self, now: float) -> bool:
        """Returns whether the launcher has ended, or its job was taken over by another process.

        A lease on a disk of another machine says nothing, as its lock is not visible.

        Args:
            now: Monotonic time, in seconds. An object is read every `RENEWAL_SECONDS` at most.

        Raises:
            OSError: The lease cannot be read.
        """
        is_local = storage.is_local(self.uri)
        if not is_local and now - self._read_at < RENEWAL_SECONDS:
            return False
        self._read_at = now
        if not storage.exists(self.uri):
            return not is_local  # an object is deleted at the end of the job
        content = storage.read(self.uri)
        if content != self._content:
            self._content, self._changed_at = content, now
        holder = Holder.parse(content)
        if is_local:
            if holder is None or not holder.is_on_this_kernel:
                return False
            return holder.lease_id != self.lease_id or not _is_locked(Path(self.uri))
        if holder is None or holder.lease_id != self.lease_id or holder.has_ended():
            return True
        return now - self._changed_at >= SILENT_SECONDS
