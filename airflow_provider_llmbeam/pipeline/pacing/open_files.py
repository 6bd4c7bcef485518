"""The limit of open files of a process: each request in flight has a connection."""

from __future__ import annotations

import resource
from pathlib import Path

from airflow_provider_llmbeam.exceptions import JobSpecError

#: Files that a process may open besides its connections to the model: segments of the journal, output files,
#: connections to stores. 5 were measured for a job on local files, and 8 with four batches at once.
OTHER_FILES = 32


def reserve_open_files(max_in_flight: int) -> None:
    """Raises the limit of open files of this process, if it is too low and the operating system allows more.

    The usual limits are 1,024 (Linux) and 256 (macOS), and `ulimit -n` of a container may be lower. A connection
    that finds none left fails its request; a journal that finds none left loses answers.

    Args:
        max_in_flight: Maximum number of concurrent requests.

    Raises:
        JobSpecError: The limit is too low and cannot be raised.
    """
    needed = len([*Path("/dev/fd").iterdir()]) + max_in_flight + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        possible = max_in_flight - (needed - hard)
        alternative = f", or lower `max_in_flight` to {possible:,}" if possible > 0 else ""
        raise JobSpecError(
            f"`limits.max_in_flight`: {max_in_flight:,} requests at once need {needed:,} open files, and this "
            f"process may have {hard:,}. Raise the limit (`ulimit -n`){alternative}."
        )
