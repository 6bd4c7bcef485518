"""Starts the jobs of the tests as forks of a process that has imported Beam.

`python -m airflow_provider_llmbeam.pipeline` takes 3.4 s of CPU time on two cores, of which the import of Beam
takes 2.5 s and that of this package 0.3 s, and the tests start some 400 of them. `tests/guard/sitecustomize.py`
lets each such process ask here for a fork, and end with it. When the process is killed, its fork is killed with
all that it started.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmbeam_sandbox.dataflow.job.fork_server import ForkedProcess, ForkServer

_CODE = """
import os, runpy, sys
sys.path.insert(0, os.getcwd())
runpy.run_module("airflow_provider_llmbeam.pipeline", None, "__main__", True)
"""
_MAX_REQUEST_BYTES = 2**20


def start_forking(address: Path) -> None:
    """Serves forks at an address until this process ends; the jobs that it starts ask there for one."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(address))
    listener.listen(64)
    Thread(target=_accept, args=(listener,), name="forking", daemon=True).start()
    os.environ["LLMBEAM_TESTS_FORK_SERVER"] = str(address)


@cache
def _fork_server() -> ForkServer:
    """Returns the server that also starts the jobs of the emulated Dataflow, with this package imported."""
    from llmbeam_sandbox.dataflow.runs import fork_server

    server = fork_server()
    server.load(["beam_shortcuts", "warm_graph"])
    return server


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        connection.settimeout(None)  # Beam's authentication sets a default of 60 s for all sockets of a process
        Thread(target=_run, args=(connection,), name="forked-job", daemon=True).start()


def _run(connection: socket.socket) -> None:
    """Runs one job; kills it if the process that asked for it ends before."""
    with connection:
        message, standard, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 3)
        try:
            request = json.loads(message)
            if request["python"] != sys.executable:
                return
            process = _fork_server().start(
                _CODE,
                request["arguments"],
                directory=Path(request["directory"]),
                environment=request["environment"],
                stdin=standard[0],
                stdout=standard[1],
                stderr=standard[2],
                has_session=True,
            )
        finally:
            for descriptor in standard:
                os.close(descriptor)
        Thread(target=_kill_at_end, args=(connection, process), name="forked-job-end", daemon=True).start()
        status = process.wait()
        with suppress(OSError):
            connection.send(b"%d" % status)
            connection.shutdown(socket.SHUT_RDWR)


def _kill_at_end(connection: socket.socket, process: ForkedProcess) -> None:
    """Kills a job, and the processes that it started, if the other end of its connection closes before it ends."""
    with suppress(OSError):
        connection.recv(1)
    if not process.has_ended:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
