"""A lease on this machine: a lock of the kernel, which ends with its process."""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_llmbeam.pipeline.lease.holder import POLL_SECONDS, Holder, held_error

_log = logging.getLogger(__name__)

#: Time for the processes of an earlier attempt to end, whose lock ends with them, in seconds.
LOCK_SECONDS = 15.0


@contextmanager
def locked(job: str, path: Path, lease_id: str) -> Iterator[None]:
    """Holds the lock of a file, which names this process as its holder, during the body.

    Raises:
        JobFailedError: Another process has held the lock for `LOCK_SECONDS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _lock(file.fileno()):
            if time.monotonic() >= deadline:
                raise held_error(job, str(path), path.read_text())
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(Holder.this_process(lease_id).model_dump_json())
        file.flush()
        yield


def is_locked(path: Path) -> bool:
    """Returns whether a process of this machine holds the lock of a file; also if files cannot be locked here.

    A process that asks for the lock in this moment is refused, and asks again.
    """
    with path.open() as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # such as a network filesystem without locks
        _log.warning("The job runs without a lease, as its file cannot be locked: %s", error)
    return True
