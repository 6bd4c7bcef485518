"""Runs jobs of the emulated Dataflow, each in its own process group, which ends with the sandbox."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from llmbeam_sandbox.dataflow.job.fork_server import ForkedProcess, ForkServer
from llmbeam_sandbox.dataflow.settings import DataflowSettings
from llmbeam_sandbox.dataflow.state import (
    CANCELLED,
    CANCELLING,
    DONE,
    FAILED,
    RUNNING,
    Job,
    Jobs,
    workers_of,
)

# Used without a refresh; without credentials Beam searches for some for 25 s.
_CREDENTIALS = {
    **dict.fromkeys(("client_id", "client_secret", "refresh_token", "token"), "sandbox"),
    "type": "authorized_user",
    "expiry": "2099-01-01T00:00:00Z",
}
KILL_HARNESS = "kill-harness"
"""Command that `dataflow.job` reads on its standard input."""
_CODE = 'import runpy; runpy.run_module("llmbeam_sandbox.dataflow.job", None, "__main__", True)'
_ROOT = Path(__file__).resolve().parents[3]
_LAST_LINES = 40
Start = Callable[[Path, Mapping[str, str], IO[bytes]], "subprocess.Popen[bytes] | ForkedProcess"]


@cache
def fork_server() -> ForkServer:
    """Returns the server that starts the jobs of this process."""
    return ForkServer.launch()


@cache
def _unpacked() -> Path:
    """Returns the directory of the unpacked wheels of all jobs of this process, which ends with it."""
    directory = tempfile.mkdtemp(prefix="llmbeam-wheels-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


class Run:
    """One process of a job, the leader of a process group.

    Args:
        start: Starts the process, with standard input as a pipe, in a working directory with environment
            variables and a file for its log.
        directory: Working directory, which gets the log.
        environment: Environment variables.
    """

    def __init__(self, start: Start, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.log = directory / "log.txt"
        self._is_over = False
        with self.log.open("ab") as log:
            self._process = start(directory, environment, log)

    @property
    def output(self) -> IO[bytes]:
        """Standard output of the process."""
        assert self._process.stdout is not None
        return self._process.stdout

    def wait(self) -> int:
        """Waits for the process, kills the rest of its group, and returns the exit status."""
        status = self._process.wait()
        self.kill()
        self._is_over = True
        with contextlib.suppress(OSError):
            self._stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status

    def kill(self) -> None:
        """Kills all its processes; does nothing after the end, when its id may belong to another process."""
        # The group outlives its leader while a member is left.
        if self._is_over:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def send(self, command: str) -> None:
        """Sends a command to the process."""
        with contextlib.suppress(OSError, ValueError):
            self._stdin.write(f"{command}\n".encode())
            self._stdin.flush()

    def log_tail(self) -> str:
        """Returns the end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin


class Runs:
    """Runs jobs.

    Args:
        jobs: Jobs and their states.
        settings: Settings of the jobs.

    Attributes:
        environments: Environment variables of the jobs, which get the last ones: those of the sandbox, and of each
            proxy before it.
    """

    def __init__(self, jobs: Jobs, settings: DataflowSettings) -> None:
        self.environments: list[dict[str, str]] = [{}]
        self._jobs = jobs
        self._settings = settings
        self._lock = threading.Lock()
        self._runs: dict[str, list[Run]] = {}
        self._cancelled: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._root: Path | None = None
        self._is_ending = False

    def execute(self, job: Job) -> None:
        """Starts a job in a thread of its own."""
        self.in_thread(job, self._run)

    def in_thread(self, job: Job, target: Any, *arguments: Any) -> None:
        """Calls `target(job, *arguments)` in a thread of its own."""
        thread = threading.Thread(target=target, args=(job, *arguments), name=f"dataflow-{job.id}", daemon=True)
        with self._lock:
            cancelled = self._cancelled.setdefault(job.id, threading.Event())
            if self._is_ending:  # a launcher that `end_all` waits for may submit its job meanwhile
                cancelled.set()
            thread.start()  # before `end_all` can join it
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]

    def start(self, job: Job, start: Start, folder: str = "") -> Run | None:
        """Starts a process of a job; returns None if the job was cancelled in the meantime.

        Args:
            job: The job.
            start: Starts the process.
            folder: Folder in the job's directory; "" is the directory itself.
        """
        with self._lock:
            if self._is_ending or self._cancelled[job.id].is_set():
                return None
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix="llmbeam-dataflow-"))
                (self._root / "credentials.json").write_text(json.dumps(_CREDENTIALS))
            credentials = {"GOOGLE_APPLICATION_CREDENTIALS": str(self._root / "credentials.json")}
            directory = self._root / job.id / folder
            directory.mkdir(parents=True, exist_ok=True)
            variables = _environment(credentials | os.environ | self.environments[-1])
            run = Run(start, directory, variables)
            self._runs.setdefault(job.id, []).append(run)
        return run

    def pause(self, job: Job) -> None:
        """Waits for the start delay of a job, or until it is cancelled."""
        self._cancelled[job.id].wait(self._settings.start_seconds)

    def is_cancelled(self, job: Job) -> bool:
        """Returns whether a job was cancelled."""
        return self._cancelled[job.id].is_set()

    def cancel(self, job: Job) -> None:
        """Cancels a job: kills its processes."""
        self._jobs.move(job, CANCELLING)
        with self._lock:
            self._cancelled.setdefault(job.id, threading.Event()).set()
            runs = list(self._runs.get(job.id, ()))
        for run in runs:
            run.kill()
        if not runs:
            self._jobs.move(job, CANCELLED)

    def send(self, job: Job, command: str) -> None:
        """Sends a command to the processes of a job."""
        for run in self._runs.get(job.id, ()):
            run.send(command)

    def end_all(self) -> None:
        """Kills the processes of all jobs, and removes their files."""
        with self._lock:
            self._is_ending = True
            for event in self._cancelled.values():
                event.set()
            runs = [run for found in self._runs.values() for run in found]
        for run in runs:
            run.kill()
        while threads := self._running_threads():
            for thread in threads:
                thread.join()
        with self._lock:
            self._runs.clear()
            self._cancelled.clear()
            if self._root is not None:
                shutil.rmtree(self._root, ignore_errors=True)
            self._root, self._is_ending = None, False

    def _running_threads(self) -> list[threading.Thread]:
        with self._lock:
            return [thread for thread in self._threads if thread.is_alive()]

    def _run(self, job: Job) -> None:
        self.pause(job)

        def start(directory: Path, environment: Mapping[str, str], log: IO[bytes]) -> ForkedProcess:
            (directory / "job.json").write_text(json.dumps(self._description(job)))
            return fork_server().start(
                _CODE,
                [str(directory)],
                directory=directory,
                environment=environment,
                stdout=None,
                stderr=log.fileno(),
                has_session=True,
            )

        run = self.start(job, start)
        if run is None:
            self._jobs.move(job, CANCELLED)
            return
        last_state = ""
        for line in run.output:
            last_state = self._apply(job, json.loads(line)) or last_state
        run.wait()
        if self.is_cancelled(job):
            self._jobs.log(job, "JOB_MESSAGE_BASIC", "Cancel request is committed for workflow job.")
            self._jobs.move(job, CANCELLED)
        elif last_state:
            self._jobs.move(job, last_state)
        else:
            text = f"The process of the job ended without reporting a state. The end of its log:\n{run.log_tail()}"
            self._jobs.log(job, "JOB_MESSAGE_ERROR", text)
            self._jobs.move(job, FAILED)

    def _apply(self, job: Job, event: Mapping[str, Any]) -> str:
        """Applies an event of a job; returns the final state that it reports, or ""."""
        if "message" in event:
            self._jobs.log(job, event["importance"], event["message"])
        elif "metrics" in event:
            self._jobs.set_metrics(job, event["metrics"])
        elif event["state"] == RUNNING:
            self._jobs.move(job, RUNNING)
        else:
            return str(event["state"]) if event["state"] in (DONE, FAILED) else ""
        return ""

    def _description(self, job: Job) -> dict[str, Any]:
        allowed = workers_of(job.fields).max_workers or self._settings.workers
        return {
            "name": job.name,
            "location": job.location,
            "options": job.fields["environment"]["sdkPipelineOptions"]["options"],
            "workers": min(self._settings.workers, allowed),
            "repeats": self._settings.bundle_repeats,
            "shuffles": self._settings.shuffles_retries,
            "unpacked": str(_unpacked()),
        }


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns variables with which this package can be imported where it is not installed."""
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(_ROOT) not in paths:
        paths.append(str(_ROOT))
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)}
