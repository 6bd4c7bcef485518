"""Starts Python processes as forks of one that has imported Apache Beam and the client of Gemini.

The imports take 4 s of CPU time, and each job has at least two processes. The server has one thread, so that a
fork is safe, and ends with the process that started it: its connection closes then. Forks of one server have the
same hash seed.

It imports the standard library only: it is also run by its path, where this package cannot be imported.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.machinery
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

MODULES = (
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
    "apache_beam.runners.worker.sdk_worker_main",
    "apache_beam.ml.inference.base",
    "genai_prices.data",
    "google.genai",
    "jinja2.sandbox",
    "jsonschema",
    "pydantic.type_adapter",
)
"""Imported before the first fork. None of them starts a Python thread or opens a gRPC channel."""
_PACKAGE = "airflow_provider_llmbeam"
_MAX_REQUEST_BYTES = 2**20
_STANDARD = 3


class ForkedProcess:
    """A process that a server has forked; the part of `subprocess.Popen` that a job needs.

    Args:
        status: Gets the id of the process, and its exit status at its end.
        stdin: Standard input of the process, as a pipe; None when it comes from elsewhere.
        stdout: Standard output of the process, as a pipe; None when it goes elsewhere.
    """

    def __init__(self, status: IO[bytes], stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self._status = status
        self._lock = threading.Lock()
        self._returncode: int | None = None
        line = status.readline()
        if not line:
            raise RuntimeError("The fork server has ended; its errors are on the standard error of this process.")
        self.pid = int(line)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process, and returns its exit status; that of a signal is negative.

        Raises:
            subprocess.TimeoutExpired: It has not ended within `timeout` seconds.
        """
        expired = subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise expired
        try:
            if self._returncode is None:
                if not _ready([self._status.fileno()], timeout):
                    raise expired
                line = self._status.readline()
                if not line:  # the server was killed, and nobody would wait for the process
                    self._kill()
                self._returncode = int(line or -signal.SIGKILL)
                self._status.close()
            return self._returncode
        finally:
            self._lock.release()

    @property
    def has_ended(self) -> bool:
        """Whether the end of the process is known."""
        return self._returncode is not None

    def kill(self) -> None:
        """Kills the process, unless it has ended, when its id may belong to another process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        if not self.has_ended:
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """The connection to a server. Safe to use from any thread.

    Args:
        link: Connection to the server.
    """

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()

    @classmethod
    def launch(cls) -> ForkServer:
        """Starts a server that imports `MODULES`, and ends with this process."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # OpenBLAS would start threads.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

        def end() -> None:
            process.kill()
            process.wait()
            ours.close()

        atexit.register(end)
        return cls(ours)

    @classmethod
    def fork(cls) -> ForkServer:
        """Forks this process, which has one thread, into a server of the same process group."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if _fork() == 0:
            ours.close()
            _serve(theirs)
        theirs.close()
        return cls(ours)

    def load(self, modules: Sequence[str], path: str | None = None) -> None:
        """Imports modules once for all later forks; those of this package for forks that find it at the same path.

        Args:
            modules: Names of modules; what cannot be imported is left to the process that needs it.
            path: New value of `PYTHONPATH`; by default, that of the server.
        """
        with self._lock:
            self._link.send(json.dumps({"modules": list(modules), "path": path}).encode())

    def start(
        self,
        code: str,
        arguments: Sequence[str] = (),
        *,
        directory: Path,
        environment: Mapping[str, str],
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int,
        has_session: bool,
    ) -> ForkedProcess:
        """Starts a process.

        Args:
            code: Python code to run, as with `python -c`.
            arguments: Arguments of the code.
            directory: Working directory.
            environment: All environment variables.
            stdin: File descriptor of standard input; None makes a pipe.
            stdout: File descriptor of standard output; None makes a pipe.
            stderr: File descriptor of standard error.
            has_session: Whether the process leads a session of its own, and so a process group.
        """
        request = {
            "code": code,
            "arguments": list(arguments),
            "directory": str(directory),
            "environment": dict(environment),
            "has_session": has_session,
        }
        stdin_read, stdin_write = (stdin, None) if stdin is not None else os.pipe()
        stdout_read, stdout_write = (None, stdout) if stdout is not None else os.pipe()
        status_read, status_write = os.pipe()
        try:
            with self._lock:
                descriptors = [stdin_read, stdout_write, stderr, status_write]
                socket.send_fds(self._link, [json.dumps(request).encode()], descriptors)
        finally:
            for descriptor in {stdin_read, stdout_write, status_write}.difference((stdin, stdout)):
                os.close(descriptor)
        return ForkedProcess(
            os.fdopen(status_read, "rb"),
            None if stdin_write is None else os.fdopen(stdin_write, "wb"),
            None if stdout_read is None else os.fdopen(stdout_read, "rb"),
        )


def _ready(descriptors: Sequence[int], timeout: float | None) -> list[int]:
    """Returns those that can be read or are closed; `select.select` refuses descriptors from 1,024 on."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1000)]


def _fork() -> int:
    with warnings.catch_warnings():
        # From Python 3.12 on for any second thread of the process: libraries in C may have idle ones.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _serve(link: socket.socket) -> NoReturn:
    """Forks a process for each request, and ends this process when the connection closes."""
    wake_read, wake_write = os.pipe()
    for descriptor in (wake_read, wake_write):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    while True:
        ready = _ready([link.fileno(), wake_read], None)
        if wake_read in ready:
            os.read(wake_read, 4096)
            _report_ended(statuses)
        if link.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(link, _MAX_REQUEST_BYTES, _STANDARD + 1)
        if not message:
            os._exit(0)
        if not descriptors:
            _load(**json.loads(message))
            continue
        *standard, status = descriptors
        pid = _fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, descriptor in enumerate(standard):
                os.dup2(descriptor, number)
            link.close()
            for descriptor in (wake_read, wake_write, *standard, status, *statuses.values()):
                os.close(descriptor)
            _run(json.loads(message))
        for descriptor in standard:
            os.close(descriptor)
        statuses[pid] = status
        _write(status, pid)


def _report_ended(statuses: dict[int, int]) -> None:
    while statuses:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        status = statuses.pop(pid)
        _write(status, os.waitstatus_to_exitcode(ended))
        os.close(status)


def _write(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(status, b"%d\n" % number)


def _run(request: Mapping[str, Any]) -> NoReturn:
    """Makes this fork the process of a request, and runs its code."""
    if request["has_session"]:
        os.setsid()
    os.chdir(request["directory"])
    environment = request["environment"]
    set_path(environment.get("PYTHONPATH", ""))
    has_same_certificates = environment.get("SSL_CERT_FILE") == os.environ.get("SSL_CERT_FILE")
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    if not has_same_certificates and (connector := sys.modules.get("aiohttp.connector")):
        # It has read the certificates of `SSL_CERT_FILE` at its import; the variable may have another value here.
        connector._SSL_CONTEXT_VERIFIED.load_default_certs()
    sys.argv[:] = ["-c", *request["arguments"]]
    status = 0
    try:
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        status = 1
    # The end of an interpreter that has imported so much takes 0.8 s.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def set_path(path: str) -> None:
    """Puts the value of `PYTHONPATH` in front of the import path, in place of the present one.

    This package is imported again if it is found elsewhere then.
    """
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, path.split(os.pathsep)), *(one for one in sys.path if one not in known)]
    os.environ["PYTHONPATH"] = path
    importlib.invalidate_caches()
    own = sys.modules.get(_PACKAGE)
    found = importlib.machinery.PathFinder.find_spec(_PACKAGE)
    if own is not None and (found is None or found.origin != own.__file__):
        for module in list(sys.modules):
            if module.partition(".")[0] == _PACKAGE:
                del sys.modules[module]


def _load(modules: Sequence[str], path: str | None = None) -> None:
    """Imports modules; what is missing here is reported by the process that needs it."""
    if path is not None:
        set_path(path)
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # else the collector of each fork visits, and so copies, all that was imported
    gc.set_threshold(10_000)  # with that of Python, 700, the collector takes 6 % of a small job


if __name__ == "__main__":
    _load(MODULES)
    _serve(socket.socket(fileno=int(sys.argv[1])))
