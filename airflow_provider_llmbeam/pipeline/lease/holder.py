"""The process that holds a lease, as the lease names it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_llmbeam.exceptions import JobFailedError

#: Interval between two attempts to get a lease, in seconds.
POLL_SECONDS = 1.0


class Holder(BaseModel):
    """The content of a lease.

    Attributes:
        lease_id: Identity of the lease; that of the next holder differs.
        host: Name of its machine.
        pid: Number of the process.
        at: Time at which the lease was written, ISO 8601.
        kernel: Boot of its kernel and namespace of `pid`, see `_kernel`; `None` if not known.
        started: Start of the process in the clock ticks of its kernel; `None` if not known.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    lease_id: str
    host: str
    pid: int = Field(ge=1, lt=2**31)
    at: str
    kernel: str | None = None
    started: int | None = None

    @classmethod
    def this_process(cls, lease_id: str) -> Holder:
        """Returns this process as the holder of a lease, now."""
        pid = os.getpid()
        return cls(
            lease_id=lease_id,
            host=socket.gethostname(),
            pid=pid,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            kernel=_kernel(),
            started=_started(pid),
        )

    @classmethod
    def parsed(cls, text: str | bytes) -> Holder | None:
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
        if not self.is_on_this_kernel:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # a process of another user
            return False
        return _started(self.pid) != self.started  # the number was given to another process, or nobody reaped it


@cache
def _kernel() -> str | None:
    """Returns what tells two kernels, and two containers of one kernel, apart; `None` on other systems than Linux.

    Source: random(4) for `boot_id`, namespaces(7) for the link.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return None


def _started(pid: int) -> int | None:
    """Returns when a process was started, in clock ticks since the boot; `None` for one that has ended.

    Source: proc_pid_stat(5), fields 3 and 22. Field 2, in parentheses, may have spaces.
    """
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in ("Z", "X") else int(fields[18])
    return None


def held_error(job: str, uri: str, content: str) -> JobFailedError:
    """Returns the error of a process that did not get the lease of a job.

    Args:
        job: Name of the job.
        uri: Address of the lease.
        content: Its content, which names the holder.
    """
    return JobFailedError(
        f"Job {job!r} is being run by another process, which holds its lease {uri!r}: {content[:300]}. This "
        "process sent and billed nothing. Wait for the end of the other one, or end it; a retry checks again."
    )
