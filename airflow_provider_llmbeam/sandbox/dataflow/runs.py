"""Runs jobs of the emulated Dataflow, each in a group of processes of its own that ends with the sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from airflow_provider_llmbeam.sandbox.dataflow.checks import workers_of
from airflow_provider_llmbeam.sandbox.dataflow.state import (
    CANCELLED,
    CANCELLING,
    DONE,
    FAILED,
    RUNNING,
    Job,
    Jobs,
)

# Taken as it is, and never refreshed; with none Beam looks for credentials for 25 s.
_CREDENTIALS = {
    **dict.fromkeys(("client_id", "client_secret", "refresh_token", "token"), "sandbox"),
    "type": "authorized_user",
    "expiry": "2099-01-01T00:00:00Z",
}
KILL_HARNESS = "kill-harness"
"""What `dataflow_job` understands on its standard input."""
_ROOT = Path(__file__).resolve().parents[3]
_LAST_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowSettings:
    """How jobs of the emulated Dataflow run.

    Attributes:
        workers: SDK harnesses of each job, >= 1; a job that allows fewer workers gets fewer.
        bundle_repeats: How often each bundle is run besides, its outputs forgotten, >= 0.
        start_seconds: How long a job waits before it runs, >= 0.
        projects: Those that there are; None stands for any.
        flex_launcher: The command that stands for the container of a flex template.

    Raises:
        ValueError: A number is out of bounds, or the command is empty.
    """

    workers: int = 1
    bundle_repeats: int = 0
    start_seconds: float = 0.0
    projects: tuple[str, ...] | None = None
    flex_launcher: tuple[str, ...] = (sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--submit")

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"`dataflow_workers` must be >= 1; got {self.workers!r}.")
        if self.bundle_repeats < 0:
            raise ValueError(f"`dataflow_bundle_repeats` must be >= 0; got {self.bundle_repeats!r}.")
        if not self.start_seconds >= 0:
            raise ValueError(f"`dataflow_start_seconds` must be >= 0; got {self.start_seconds!r}.")
        if not self.flex_launcher:
            raise ValueError("`flex_launcher` must be a command, such as [sys.executable, 'launch.py'].")


class Run:
    """One process of a job, and the thread that follows it.

    Args:
        command: What to run; its processes share a group.
        directory: Where it runs and logs.
        environment: Its variables.
        is_heard: Whether its standard output is read; else it goes to the log.
    """

    def __init__(
        self, command: Sequence[str], directory: Path, environment: Mapping[str, str], *, is_heard: bool
    ) -> None:
        self.directory = directory
        self.log = directory / "log.txt"
        self._is_over = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if is_heard else log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> IO[bytes]:
        """Standard output."""
        assert self._process.stdout is not None
        return self._process.stdout

    def wait(self) -> int:
        """Wait for the end, end what it left behind, and return the exit status."""
        status = self._process.wait()
        self.kill()
        self._is_over = True
        with contextlib.suppress(OSError):
            self._stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status

    def kill(self) -> None:
        """End all its processes at once; does nothing once it is over, as its number may be another's by then."""
        # The group outlives its leader as long as one member is left.
        if self._is_over:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def order(self, line: str) -> None:
        """Ask something of it."""
        with contextlib.suppress(OSError, ValueError):
            self._stdin.write(f"{line}\n".encode())
            self._stdin.flush()

    def last_lines(self) -> str:
        """Return the end of what it has written for people."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin


class Runs:
    """Runs jobs.

    Args:
        jobs: Where their states are kept.
        settings: How they run.
    """

    def __init__(self, jobs: Jobs, settings: DataflowSettings) -> None:
        self.environment: dict[str, str] = {}
        self._jobs = jobs
        self._settings = settings
        self._lock = threading.Lock()
        self._runs: dict[str, list[Run]] = {}
        self._cancelled: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._root: Path | None = None
        self._is_ending = False

    def execute(self, job: Job) -> None:
        """Begin to run a job."""
        self.follow(job, self._run)

    def follow(self, job: Job, target: Any, *arguments: Any) -> None:
        """Do something for a job in a thread of its own."""
        thread = threading.Thread(target=target, args=(job, *arguments), name=f"dataflow-{job.id}", daemon=True)
        with self._lock:
            self._cancelled.setdefault(job.id, threading.Event())
            self._threads = [one for one in self._threads if one.is_alive()] + [thread]
        thread.start()

    def start(
        self, job: Job, command: Callable[[Path], Sequence[str]], folder: str = "", *, is_heard: bool
    ) -> Run | None:
        """Start a process of a job; None when the job has been ended meanwhile.

        Args:
            job: Whose it is.
            command: Given the directory in which it runs.
            folder: Of the job's directory; "" is the directory itself.
            is_heard: Whether its standard output is read.
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
            variables = _environment(credentials | os.environ | self.environment)
            run = Run(command(directory), directory, variables, is_heard=is_heard)
            self._runs.setdefault(job.id, []).append(run)
        return run

    def pause(self, job: Job) -> None:
        """Wait as long as a job waits before it runs, or until it is cancelled."""
        self._cancelled[job.id].wait(self._settings.start_seconds)

    def is_cancelled(self, job: Job) -> bool:
        """Return whether the processes of a job are to end, or have been ended."""
        return self._cancelled[job.id].is_set()

    def cancel(self, job: Job) -> None:
        """End the processes of a job."""
        self._jobs.move(job, CANCELLING)
        with self._lock:
            self._cancelled.setdefault(job.id, threading.Event()).set()
            runs = list(self._runs.get(job.id, ()))
        for run in runs:
            run.kill()
        if not runs:
            self._jobs.move(job, CANCELLED)

    def order(self, job: Job, line: str) -> None:
        """Ask something of the process that runs a job."""
        for run in self._runs.get(job.id, ()):
            run.order(line)

    def end_all(self) -> None:
        """End all processes of all jobs, and remove their files."""
        with self._lock:
            self._is_ending = True
            for event in self._cancelled.values():
                event.set()
            runs = [run for found in self._runs.values() for run in found]
            threads = list(self._threads)
        for run in runs:
            run.kill()
        for thread in threads:
            thread.join()
        with self._lock:
            self._runs.clear()
            self._cancelled.clear()
            if self._root is not None:
                shutil.rmtree(self._root, ignore_errors=True)
            self._root, self._is_ending = None, False

    def _run(self, job: Job) -> None:
        self.pause(job)

        def command(directory: Path) -> list[str]:
            (directory / "job.json").write_text(json.dumps(self._order(job)))
            return [sys.executable, "-m", "airflow_provider_llmbeam.sandbox.dataflow.job", str(directory)]

        run = self.start(job, command, is_heard=True)
        if run is None:
            self._jobs.move(job, CANCELLED)
            return
        ending = ""
        for line in run.output:
            ending = self._note(job, json.loads(line)) or ending
        run.wait()
        if self.is_cancelled(job):
            self._jobs.say(job, "JOB_MESSAGE_BASIC", "Cancel request is committed for workflow job.")
            self._jobs.move(job, CANCELLED)
        elif ending:
            self._jobs.move(job, ending)
        else:
            text = f"The process that ran the job ended without a word. Its last lines:\n{run.last_lines()}"
            self._jobs.say(job, "JOB_MESSAGE_ERROR", text)
            self._jobs.move(job, FAILED)

    def _note(self, job: Job, event: Mapping[str, Any]) -> str:
        """Take down what a job tells; returns the state in which it says to end, or ""."""
        if "message" in event:
            self._jobs.say(job, event["importance"], event["message"])
        elif "metrics" in event:
            self._jobs.measure(job, event["metrics"])
        elif event["state"] == RUNNING:
            self._jobs.move(job, RUNNING)
        else:
            return str(event["state"]) if event["state"] in (DONE, FAILED) else ""
        return ""

    def _order(self, job: Job) -> dict[str, Any]:
        allowed = workers_of(job.fields).max_workers or self._settings.workers
        return {
            "name": job.name,
            "location": job.location,
            "options": job.fields["environment"]["sdkPipelineOptions"]["options"],
            "workers": min(self._settings.workers, allowed),
            "repeats": self._settings.bundle_repeats,
        }


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables under which this package is found also where it is not installed."""
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(_ROOT) not in paths:
        paths.append(str(_ROOT))
    return {**variables, "PYTHONPATH": os.pathsep.join(paths)}
