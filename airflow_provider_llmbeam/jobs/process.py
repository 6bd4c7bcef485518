"""A job in a separate process, run through the pipeline's entry point."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam import exceptions
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.jobs.environment import configured_variables, job_environment
from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.redaction import redact, secrets_of
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.alert import Alert

if TYPE_CHECKING:
    from airflow_provider_llmbeam.jobs.client import Files
    from airflow_provider_llmbeam.spec.protocol.steps import Reads

#: Exit code of the entry point after a SIGTERM or Ctrl-C.
_EXIT_INTERRUPTED = 130
#: The line of an exception in a traceback.
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception): ")


class JobProcess:
    """Runs `python -m airflow_provider_llmbeam.pipeline` and writes its output lines to a log as they arrive.

    The child leads a process group, so that `stop` reaches all its processes. It ends by itself when this process
    dies: the kernel kills it, and it reads a pipe whose other end is held here. (`on_kill` is not called after a
    kill -9.)

    It gets the part of this process's environment that `jobs.environment` allows, and its lines are logged
    without secrets.

    Args:
        spec: The job.
        environment: Variables of the job besides those of the worker, e.g. an API key.
        log: Log that receives the child's lines.
        python: Interpreter of the virtual environment that contains Beam; by default that of this process.
        on_alert: Called with each alert of the job, as it is raised.
        on_page: Called with the page of a stream, see `manifest.encode_page`, when it has changed.
        files_at: Returns the client of the filesystem to which the rows of a SQL source are staged; by default
            with the default connection.

    Attributes:
        page: Page of what the job or the step has reported, see `manifest.encode_page`; `None` without one.
    """

    #: Time between SIGTERM and SIGKILL, in seconds.
    GRACE_SECONDS = 10

    def __init__(
        self,
        spec: JobSpec,
        environment: Mapping[str, str],
        log: TaskLog,
        python: str = sys.executable,
        on_alert: Callable[[Alert], None] | None = None,
        files_at: Callable[[str], Files] | None = None,
        on_page: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._spec = spec
        self._environment = environment
        self._log = log
        self._python = python
        self._on_alert, self._on_page = on_alert, on_page
        self._files_at = files_at or partial(_default_files_at, spec)
        self._is_stopped = False
        self.page: dict[str, Any] | None = None
        self._child: subprocess.Popen[str] | None = None
        self._last_error = ""
        self._secrets: tuple[str, ...] = ()

    def run(self, *, defers: bool = False) -> dict[str, Any]:
        """Runs the job until it ends, or until it only waits for batch inference.

        Args:
            defers: Whether it returns while batch inference goes on.

        Returns:
            `report`, the manifest; or `batch`, with `wait_seconds` until the next call of this method.

        Raises:
            LLMBeamError: The error class is the one that the child reported.
        """
        return self._run_child(*(["--defer"] if defers else []), reads="all")

    def submit(self, beam_options: Sequence[str] = ()) -> dict[str, str]:
        """Submits the job to Dataflow or Flink.

        Returns:
            `id`, `name`, `project` and `location` of the job.

        Raises:
            LLMBeamError: The error class is the one that the child reported.
        """
        job: dict[str, str] = self._run_child("--step=submit", *beam_options, reads="all")["job"]
        return job

    def stage(self) -> None:
        """Stages the rows of a SQL source, for a job that another machine submits.

        Raises:
            LLMBeamError: They cannot be read or written.
        """
        with self._stage_source("all"):
            pass

    def run_step(self, name: str, given: SpecModel) -> dict[str, Any]:
        """Does a step of the job, see `spec.protocol.steps`.

        Args:
            name: Name of the step.
            given: What it is asked for.

        Returns:
            Its result, as plain data.

        Raises:
            LLMBeamError: The error class is the one that the child reported.
        """
        from airflow_provider_llmbeam.spec.protocol.steps import reads_of

        outcome = self._run_child(f"--step={name}", given=given, reads=reads_of(name))
        result: dict[str, Any] = outcome["result"]
        return result

    @contextmanager
    def _stage_source(self, reads: Reads) -> Iterator[dict[str, str]]:
        from airflow_provider_llmbeam.jobs.stage import stage_source

        self._is_stopped = False
        with stage_source(self._spec, reads, self._files_at, self._log) as variables:
            if self._is_stopped:
                raise JobFailedError(f"Job {self._spec.name!r} was stopped before it started; nothing was sent.")
            yield variables

    def _run_child(self, *arguments: str, reads: Reads, given: SpecModel | None = None) -> dict[str, Any]:
        with (
            self._stage_source(reads) as variables,
            tempfile.TemporaryDirectory(prefix="llmbeam-", ignore_cleanup_errors=True) as directory,
        ):
            spec_path, result_path = Path(directory, "spec.json"), Path(directory, "result.json")
            _write_private(spec_path, self._spec)
            if given is not None:
                _write_private(Path(directory, "input.json"), given)
                arguments = (*arguments, f"--input={directory}/input.json")
            alerts = AlertFile(Path(directory, "alerts.jsonl"), self._log)
            if self._on_alert is not None:
                arguments = (*arguments, f"--alerts={alerts.path}")
            page = PageFile(Path(directory, "page.json"))
            if self._on_page is not None:
                arguments = (*arguments, f"--page={page.path}")
            with self._start(spec_path, result_path, arguments, variables) as child:
                self._child = child
                assert child.stdout is not None
                try:
                    for line in child.stdout:
                        text = redact(line.rstrip(), self._secrets)
                        self._last_error = text if _ERROR.match(text) else self._last_error
                        self._log.info("%s", text)
                        self._pass_on(alerts, page)
                except BaseException:  # such as Airflow's `execution_timeout`
                    self.stop()  # before its input is closed, which ends it at once
                    raise
            self._pass_on(alerts, page)
            return self._outcome(child.returncode, result_path)

    def _pass_on(self, alerts: AlertFile, page: PageFile) -> None:
        if self._on_alert is not None:
            for alert in alerts.new():
                self._on_alert(alert)
        if self._on_page is not None and (found := page.new()) is not None:
            self._on_page(found)

    def stop(self) -> None:
        """Ends the child and all processes that it started."""
        self._is_stopped = True
        if self._child is None or self._child.poll() is not None:
            return
        self._log.warning("Stopping job %r. The answers so far are in its journal.", self._spec.name)
        if self._spec.inference.mode != "online":
            self._log.warning("Its batch-inference jobs go on, and bill; the next try uses their answers.")
        os.killpg(self._child.pid, signal.SIGTERM)
        try:
            self._child.wait(self.GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, signal.SIGKILL)

    def _start(
        self, spec_path: Path, result_path: Path, arguments: Sequence[str], variables: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        # What a child that is stopped leaves in its temporary directory is removed with that of this process; what
        # the jobs of a machine share, the pace of their requests, is outside it.
        temporary = {"TMPDIR": str(spec_path.parent), "LLMBEAM_SHARED_TMPDIR": tempfile.gettempdir()}
        given = {**self._environment, **variables, **temporary}
        environment = job_environment(self._spec, given, os.environ, configured_variables())
        self._secrets = secrets_of(environment, self._spec.secret_variables)
        return subprocess.Popen(
            [
                self._python,
                "-m",
                "airflow_provider_llmbeam.pipeline",
                f"--spec={spec_path}",
                f"--result={result_path}",
                "--child",
                *arguments,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )

    def _outcome(self, exit_code: int, result_path: Path) -> dict[str, Any]:
        if not result_path.exists():
            raise JobFailedError(
                f"Job {self._spec.name!r} {_exit_words(exit_code, self._last_error)}. What was "
                f"answered is kept in {self._spec.paths.journal_uri!r}; a retry sends only the rest."
            )
        outcome: dict[str, Any] = json.loads(result_path.read_text())
        if "error" in outcome:
            found = outcome["error"]
            error = exceptions.error_class(found["type"], JobFailedError)(found["message"])
            error.page, error.report = found["page"], found["report"]
            raise error
        self.page = outcome.get("page")
        return outcome


class AlertFile:
    """Reads the alerts of a process, each once.

    Args:
        path: The file, which need not exist yet.
        log: Log of the task.
    """

    def __init__(self, path: Path, log: TaskLog) -> None:
        self.path = path
        self._log = log
        self._read_bytes = 0

    def new(self) -> Iterator[Alert]:
        """Yields the alerts since the last call; a line that is not complete is left for the next one."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return
        self._read_bytes += len(whole) + 1
        for line in whole.decode(errors="replace").splitlines():
            try:
                yield Alert.from_json(line)
            except ValueError as error:
                self._log.warning("An alert of the job cannot be read: %s", error)


class PageFile:
    """Reads the page of a process, each time that it has changed.

    Args:
        path: The file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_at = 0

    def new(self) -> dict[str, Any] | None:
        """Returns the page, if it has changed since the last call."""
        if not self.path.exists() or (at := self.path.stat().st_mtime_ns) == self._read_at:
            return None
        self._read_at = at
        page: dict[str, Any] = json.loads(self.path.read_bytes())
        return page


def _default_files_at(spec: JobSpec, uri: str) -> Files:
    from airflow_provider_llmbeam.hooks.storage import files_at  # Google's clients take a second

    return files_at(uri, "google_cloud_default", spec.kms_key_name)


def _write_private(path: Path, value: SpecModel) -> None:
    path.touch(mode=0o600)
    path.write_text(value.model_dump_json())


def _exit_words(exit_code: int, error: str) -> str:
    if exit_code == _EXIT_INTERRUPTED:
        return f"was interrupted (exit code {exit_code})"
    words = f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
    if exit_code < 0 or not error:
        return f"ended with {words} and left no result"
    return f"ended with {words}: {error.rstrip('.')}"
