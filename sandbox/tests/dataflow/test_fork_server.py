from __future__ import annotations

import fcntl
import os
import resource
import subprocess
from pathlib import Path

import pytest
from llmbeam_sandbox.dataflow.job.fork_server import ForkedProcess, ForkServer

import airflow_provider_llmbeam

#: `select.select` refuses this descriptor and all above it.
FD_SETSIZE = 1024
ROOT = Path(airflow_provider_llmbeam.__file__).parents[1]


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


_LOADED = """
import sys
print("airflow_provider_llmbeam.pipeline" in sys.modules, end=" ")
import airflow_provider_llmbeam
print(airflow_provider_llmbeam.__file__)
"""


@pytest.fixture
def fork():
    """Forks with a value of `PYTHONPATH` say whether they have the pipeline, and where they have it from."""
    server = ForkServer.launch()
    server.load(["airflow_provider_llmbeam.pipeline", "airflow_provider_llmbeam.missing"])

    def run(directory, path):
        with (directory / "log").open("wb") as log:
            environment = {"PYTHONPATH": str(path)}
            started = server.start(
                _LOADED, directory=directory, environment=environment, stderr=log.fileno(), has_session=False
            )
            started.stdin.close()
            with started.stdout as output:
                text = output.read().decode()
        assert started.wait() == 0, (directory / "log").read_text()
        return text.split()

    return run


def test_a_fork_has_the_package_that_was_imported_before(fork, tmp_path):
    assert fork(tmp_path, ROOT) == ["True", str(ROOT / "airflow_provider_llmbeam" / "__init__.py")]


def test_a_fork_imports_a_package_that_its_path_has_elsewhere(fork, tmp_path):
    other = tmp_path / "airflow_provider_llmbeam" / "__init__.py"
    other.parent.mkdir()
    other.write_text("")
    assert fork(tmp_path, tmp_path) == ["False", str(other)]
