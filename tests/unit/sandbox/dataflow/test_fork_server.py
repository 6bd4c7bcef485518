from __future__ import annotations

import fcntl
import os
import resource
import subprocess

import pytest

from airflow_provider_llmbeam.sandbox.dataflow.job.fork_server import ForkedProcess

#: `select.select` refuses this descriptor and all above it.
FD_SETSIZE = 1024


@pytest.fixture
def pipe():
    """A pipe whose read end has a descriptor that `select.select` refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * FD_SETSIZE
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    read, write = os.pipe()
    high = fcntl.fcntl(read, fcntl.F_DUPFD_CLOEXEC, FD_SETSIZE)
    os.close(read)
    with os.fdopen(high, "rb", buffering=0) as status, os.fdopen(write, "wb", buffering=0) as server:
        yield status, server
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_end_of_a_job_is_seen_where_a_thousand_files_are_open(pipe):
    status, server = pipe
    server.write(b"4711\n")
    process = ForkedProcess(status, None, None)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    assert not process.has_ended
    server.write(b"3\n")
    assert process.wait() == 3
    assert process.has_ended
