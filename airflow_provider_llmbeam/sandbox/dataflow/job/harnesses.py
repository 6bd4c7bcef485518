"""SDK harnesses as processes: what runs the user's code. One that dies is replaced, its bundles fail."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import beam_fn_api_pb2, beam_runner_api_pb2, endpoints_pb2
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from google.protobuf import text_format

URN = "llmbeam:env:sandbox_harness:v1"
MAX_RESTARTS = 12
"""Of all harnesses of a job: code that cannot even be imported must not be tried for ever."""
STOP_SECONDS = 15.0
"""How long a harness may take to tear down its functions once there is no more work."""
_CODE = """
import os, runpy, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module("apache_beam.runners.worker.sdk_worker_main", run_name="__main__", alter_sys=True)
"""


class _LoopbackServer:
    """A gRPC server that binds to loopback whatever address it is given."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_insecure_port(self, address: str) -> int:
        return int(self._server.add_insecure_port(f"127.0.0.1:{address.rpartition(':')[2]}"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class _LoopbackGrpc:
    """The module grpc for Beam's runner, which would serve all of the network."""

    @staticmethod
    def server(*arguments: Any, **options: Any) -> _LoopbackServer:
        return _LoopbackServer(grpc.server(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(grpc, name)


class Link:
    """The control connection of one process: every request gets an answer, also once the process is dead."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._death = ""

    def push(self, request: Any) -> Any:
        """Send a request; returns the future of its answer."""
        future = self._connection.push(request)
        if self._death:
            self._fail_all()
        return future

    def break_off(self, death: str) -> None:
        """Answer all that waits, and all that will come, with an error."""
        self._death = death
        self._fail_all()

    def _fail_all(self) -> None:
        waiting = self._connection._futures_by_id
        for instruction_id in list(waiting):
            future = waiting.pop(instruction_id, None)
            if future is not None:
                answer = beam_fn_api_pb2.InstructionResponse(instruction_id=instruction_id, error=self._death)
                future.set(answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Harness(worker_handlers.GrpcWorkerHandler):
    """One slot for a harness; a new process takes the place of one that has died."""

    control_conn: Any
    data_conn: Any
    worker_id: str

    def __init__(self, payload: bytes, state: Any, provision_info: Any, grpc_server: Any) -> None:
        super().__init__(state, provision_info, grpc_server)
        self.control_conn = Link(self.control_conn)
        self.process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def host_from_worker(self) -> str:
        """Return the host under which the harness finds the runner."""
        return "127.0.0.1"

    def start_worker(self) -> None:
        """Start a process, and watch it."""
        POOL.add(self)
        # Each stands for a machine: what processes of one machine share in files, these must not.
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
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE], stdin=subprocess.PIPE, env=environment
        )
        watch = threading.Thread(target=self._watch, args=(self.process, self.control_conn), daemon=True)
        watch.start()

    def stop_worker(self) -> None:
        """Wait until the process has ended by itself, or end it."""
        self._is_stopping = True
        assert self.process is not None, "started when it was made"
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def close(self) -> None:
        """End the process in good order."""
        self._is_stopping = True
        if self.control_conn._state != worker_handlers.BeamFnControlServicer.STARTED_STATE and self.process:
            # One that has not come yet would never hear that there is no work.
            self.process.kill()
        super().close()

    def _watch(self, process: subprocess.Popen[bytes], link: Link) -> None:
        status = process.wait()
        if self._is_stopping:
            return
        cause = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        death = f"SDK harness {self.worker_id} (process {process.pid}) disconnected: {cause}."
        if POOL.may_restart(death):
            self.worker_id = f"{self.worker_id.partition('.')[0]}.{next(POOL.serial)}"
            handler = self.control_handler
            self.control_conn = Link(handler.get_conn_by_worker_id(self.worker_id))
            self.data_conn = self.data_plane_handler.get_conn_by_worker_id(self.worker_id)
            self.start_worker()
        link.break_off(death)


class Pool:
    """All harnesses of this job."""

    def __init__(self) -> None:
        self.serial = itertools.count(1)
        self.on_death: Callable[[str], None] = print
        self._harnesses: list[Harness] = []
        self._restarts = 0

    def add(self, harness: Harness) -> None:
        """Note a harness."""
        if harness not in self._harnesses:
            self._harnesses.append(harness)

    def may_restart(self, death: str) -> bool:
        """Tell of a death; returns whether another process may be started."""
        self.on_death(death)
        self._restarts += 1
        return self._restarts <= MAX_RESTARTS

    def kill_one(self) -> None:
        """Kill the first harness with -9, as a machine that is lost."""
        for harness in self._harnesses[:1]:
            if harness.process is not None:
                harness.process.kill()


POOL = Pool()


def replace_environments(pipeline: Any) -> None:
    """Let processes of this machine take the place of the containers that a pipeline names."""
    worker_handlers.WorkerHandler.register_environment(URN, bytes)(Harness)
    worker_handlers.grpc = _LoopbackGrpc()
    for environment in pipeline.components.environments.values():
        capabilities = list(environment.capabilities)
        environment.CopyFrom(beam_runner_api_pb2.Environment(urn=URN, capabilities=capabilities))
