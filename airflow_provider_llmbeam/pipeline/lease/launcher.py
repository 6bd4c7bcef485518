"""The process that runs a job, as its workers see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.lease.holder import Holder
from airflow_provider_llmbeam.pipeline.lease.leased_object import LEASE_SECONDS, RENEWAL_SECONDS
from airflow_provider_llmbeam.pipeline.lease.locked_file import is_locked

#: Time without a renewal after which the launcher has ended, in seconds; a failed renewal is repeated meanwhile.
SILENT_SECONDS = 2 * LEASE_SECONDS


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
    _read_at: float = field(default=-inf, init=False)
    _changed_at: float = field(default=-inf, init=False)

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
        holder = Holder.parsed(content)
        if is_local:
            if holder is None or not holder.is_on_this_kernel:
                return False
            return holder.lease_id != self.lease_id or not is_locked(Path(self.uri))
        if holder is None or holder.lease_id != self.lease_id or holder.has_ended():
            return True
        return now - self._changed_at >= SILENT_SECONDS
