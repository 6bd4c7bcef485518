"""Tests of the guard that restricts all tests to loopback addresses and forks their jobs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
from waiting import until

from tests.processes import forked_jobs, has_ended


@pytest.mark.parametrize("address", ["192.0.2.1", "example.invalid"])
def test_no_test_reaches_an_address_but_loopback(address):
    with pytest.raises(PermissionError, match="loopback"):
        socket.create_connection((address, 80), timeout=1)


def test_no_process_that_a_test_starts_reaches_one_either():
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "PermissionError: tests reach no address but loopback" in ended.stderr


def test_a_job_is_a_fork_that_ends_with_its_process(tmp_path):
    os.mkfifo(tmp_path / "spec.json")
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", f"--spec={tmp_path}/spec.json"]
    before = set(forked_jobs())
    with subprocess.Popen(command) as process:
        (fork,) = until(lambda: set(forked_jobs()) - before, "a fork")
        assert process.poll() is None
        process.kill()
        until(lambda: has_ended(fork.pid), "the end of the fork")


def test_a_job_outlives_the_default_timeout_of_sockets_that_beam_sets(tmp_path):
    before_all = socket.getdefaulttimeout()
    os.mkfifo(tmp_path / "spec.json")
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", f"--spec={tmp_path}/spec.json"]
    before = set(forked_jobs())
    socket.setdefaulttimeout(0.2)
    try:
        with subprocess.Popen(command) as process:
            (fork,) = until(lambda: set(forked_jobs()) - before, "a fork")
            time.sleep(0.6)
            assert not has_ended(fork.pid)
            process.kill()
    finally:
        socket.setdefaulttimeout(before_all)
