"""A job service of Beam, and a worker pool, for the tests of portable runners."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import sessions
from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer
from apache_beam.utils.subprocess_server import pick_port

from tests.prism import prism_binary


@contextmanager
def job_service() -> Iterator[str]:
    """Runs Prism; yields its address."""
    binary, (port,) = prism_binary(), pick_port(None)
    command = [binary, f"--job_port={port}", "--serve_http=false"]
    service = sessions.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with grpc.insecure_channel(f"localhost:{port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
    yield f"localhost:{port}"
    service.terminate()
    service.wait()


@contextmanager
def worker_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Runs a pool whose workers are processes; yields its address."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    address, server = BeamFnExternalWorkerPoolServicer.start(use_process=True)
    yield address
    server.stop(None).wait()
