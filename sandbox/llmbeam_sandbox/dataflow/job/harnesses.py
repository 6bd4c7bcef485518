"""SDK harnesses: the processes that run the user's code. One that exits is replaced, and its bundles fail."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_runner_api_pb2, endpoints_pb2
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from google.protobuf import text_format

from llmbeam_sandbox.dataflow.job.fork_server import ForkedProcess, ForkServer

URN = "llmbeam:env:sandbox_harness:v1"
MAX_RESTARTS = 12
"""Restarts of all harnesses of a job: code that cannot be imported must not be retried forever."""
STOP_SECONDS = 15.0
"""Time in which a harness may tear down its functions after the end of its work, in seconds."""
_CODE = """
import os, runpy, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module("apache_beam.runners.worker.sdk_worker_main", run_name="__main__", alter_sys=True)
"""


class _LoopbackServer:
    """A gRPC server that binds to loopback in place of any address."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_insecure_port(self, address: str) -> int:
        return int(self._server.add_insecure_port(f"127.0.0.1:{address.rpartition(':')[2]}"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class _LoopbackGrpc:
    """The module grpc for Beam's runner, which would otherwise listen on all interfaces."""

    @staticmethod
    def server(*arguments: Any, **options: Any) -> _LoopbackServer:
        return _LoopbackServer(grpc.server(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(grpc, name)


class Link:
    """The control connection of one process: every request gets an answer, also after the process has exited."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._exit_cause = ""

    def push(self, request: Any) -> Any:
        """Sends a request, and returns the future of its answer."""
        future = self._connection.push(request)
        if self._exit_cause:
            self._fail_all()
        return future

    def close_with(self, cause: str) -> None:
        """Answers all waiting and all future requests with an error."""
        self._exit_cause = cause
        self._fail_all()

    def _fail_all(self) -> None:
        waiting = self._connection._futures_by_id
        for instruction_id in list(waiting):
            future = waiting.pop(instruction_id, None)
            if future is not None:
                answer = beam_fn_api_pb2.InstructionResponse(instruction_id=instruction_id, error=self._exit_cause)
                future.set(answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Harness(worker_handlers.GrpcWorkerHandler):
    """One slot for a harness; a new process replaces one that has exited."""

    control_conn: Any
    data_conn: Any
    worker_id: str

    def __init__(self, payload: bytes, state: Any, provision_info: Any, grpc_server: Any) -> None:
        super().__init__(state, provision_info, grpc_server)
        self.control_conn = Link(self.control_conn)
        self.process: ForkedProcess | None = None
        self._is_stopping = False

    def host_from_worker(self) -> str:
        """Returns the host at which the harness reaches the runner."""
        return "127.0.0.1"

    def start_worker(self) -> None:
        """Starts a process, and waits for its exit in a thread."""
        POOL.add(self)
        # Each stands for a machine: harnesses must not share the files that processes of one machine share.
        files = Path(os.environ["SEMI_PERSISTENT_DIRECTORY"], "machines", self.worker_id)
        files.mkdir(parents=True, exist_ok=True)
        control = endpoints_pb2.ApiServiceDescriptor(url=self.control_address)
        environment = {
            **os.environ,
            "CONTROL_API_SERVICE_DESCRIPTOR": text_format.MessageToString(control),
            "LOGGING_API_SERVICE_DESCRIPTOR": text_format.MessageToString(self.logging_api_service_descriptor()),
            "WORKER_ID": self.worker_id,
            "TMPDIR": str(files),
        }
        assert POOL.forks is not None, "set by the job"
        self.process = POOL.forks.start(
            _CODE, directory=Path.cwd(), environment=environment, stdout=1, stderr=2, has_session=False
        )
        watcher = threading.Thread(target=self._wait_for_exit, args=(self.process, self.control_conn), daemon=True)
        watcher.start()

    def stop_worker(self) -> None:
        """Waits until the process has exited, or kills it after a timeout."""
        self._is_stopping = True
        assert self.process is not None, "started when it was made"
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def close(self) -> None:
        """Ends the process gracefully."""
        self._is_stopping = True
        if self.control_conn._state != worker_handlers.BeamFnControlServicer.STARTED_STATE and self.process:
            # One that has not connected yet would never receive the end of the work.
            self.process.kill()
        super().close()

    def _wait_for_exit(self, process: ForkedProcess, link: Link) -> None:
        status = process.wait()
        if self._is_stopping:
            return
        reason = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        cause = f"SDK harness {self.worker_id} (process {process.pid}) disconnected: {reason}."
        if POOL.may_restart(cause):
            self.worker_id = f"{self.worker_id.partition('.')[0]}.{next(POOL.serial)}"
            handler = self.control_handler
            self.control_conn = Link(handler.get_conn_by_worker_id(self.worker_id))
            self.data_conn = self.data_plane_handler.get_conn_by_worker_id(self.worker_id)
            self.start_worker()
        link.close_with(cause)


class Pool:
    """All harnesses of this job."""

    def __init__(self) -> None:
        self.serial = itertools.count(1)
        self.on_exit: Callable[[str], None] = print
        self.forks: ForkServer | None = None
        self._harnesses: list[Harness] = []
        self._restarts = 0

    def add(self, harness: Harness) -> None:
        """Adds a harness."""
        if harness not in self._harnesses:
            self._harnesses.append(harness)

    def may_restart(self, cause: str) -> bool:
        """Reports the exit of a process, and returns whether another process may be started."""
        self.on_exit(cause)
        self._restarts += 1
        return self._restarts <= MAX_RESTARTS

    def kill_one(self) -> None:
        """Kills the first harness with SIGKILL, as when a machine is lost."""
        for harness in self._harnesses[:1]:
            if harness.process is not None:
                harness.process.kill()


POOL = Pool()


def replace_environments(pipeline: Any) -> None:
    """Replaces the containers that a pipeline names by processes of this machine."""
    worker_handlers.WorkerHandler.register_environment(URN, bytes)(Harness)
    worker_handlers.grpc = _LoopbackGrpc()
    for environment in pipeline.components.environments.values():
        capabilities = list(environment.capabilities)
        environment.CopyFrom(beam_runner_api_pb2.Environment(urn=URN, capabilities=capabilities))
