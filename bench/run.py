"""Runs one contender on one job: starts it, kills it if the job requires that, waits, and measures."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contenders.contender import Contender
from bench.contenders.task import Task
from bench.jobs import Job
from bench.measure import (
    Measurement,
    answer_figures,
    padding_figures,
    paid_twice,
    per_second,
    request_figures,
)
from bench.rows import Row, make_rows
from bench.server import ServerProcess

ROOT = Path(__file__).parent.parent
#: Number of output lines of a failed process that are quoted, from the end.
QUOTED_LINES = 1
READY_TIMEOUT_SECONDS = 120.0


class RunFailedError(Exception):
    """A contender's process failed or exceeded a time limit."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case of the benchmark.

    Attributes:
        job: Job to run.
        contender: Contender that runs the job.
        python: Interpreter of the contender.
        processes: Number of worker processes that share the rows.
        repeat: Number of the repeat, starting at 0.
    """

    job: Job
    contender: Contender
    python: Path
    processes: int
    repeat: int

    @property
    def rows(self) -> list[Row]:
        """Rows of the job; fewer for a slow contender."""
        max_rows = self.contender.max_rows.get(self.job.letter, self.job.rows)
        return make_rows(self.job.row_kind, min(max_rows, self.job.rows))


def run_case(case: Case) -> Measurement:
    """Runs a case in a temporary directory; returns a failed run as a measurement with `failure`."""
    rows = case.rows
    measurement = Measurement(
        job=case.job.letter,
        contender=case.contender.name,
        processes=case.processes,
        repeat=case.repeat,
        rows=len(rows),
    )
    with tempfile.TemporaryDirectory(prefix="llmbeam-bench-") as name, ExitStack() as stack:
        directory, server = Path(name), None
        if case.job.server is not None:
            server = stack.enter_context(ServerProcess(case.job.server, directory, environment_of({})))
        try:
            _Run(case, rows, directory, server, measurement).run()
        except RunFailedError as error:
            measurement.failure = str(error)
        if server is not None:
            server_cpu_seconds = server.cpu_seconds()
            records = server.requests()
            # The log of a killed job covers all of its runs; figures computed between the runs take precedence.
            measurement.figures = request_figures(case.job, rows, records) | measurement.figures
            if case.job.server is not None and case.job.server.pool_requests_per_minute is not None:
                capacity = server.capacity(measurement.figures["sending_seconds"])
                measurement.figures["utilisation"] = measurement.figures["answered"] / capacity
            measurement.figures["server_cpu_seconds"] = server_cpu_seconds
            measurement.figures["max_in_flight"] = server.max_in_flight()
            measurement.admitted_per_second = per_second(records, rejected=False)
            measurement.rejected_per_second = per_second(records, rejected=True)
    return measurement


def environment_of(added: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of a process, without secrets, and restricted to loopback addresses."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_TOKEN"))}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "guard")]),
        "LLMBEAM_TESTS_ON_LOOPBACK": "1",
        "GOOGLE_API_KEY": "bench",
        "OPENAI_API_KEY": "bench",
        # Without credentials Beam searches for a metadata server for 25 s.
        "NO_GCE_CHECK": "true",
        **added,
    }


class _Run:
    """Starts, monitors and kills the processes of one case."""

    def __init__(
        self, case: Case, rows: list[Row], directory: Path, server: ServerProcess | None, measurement: Measurement
    ) -> None:
        self._case = case
        self._rows = rows
        self._directory = directory
        self._server = server
        self._measurement = measurement
        self._start = directory / "start"
        self._tasks = [self._task(number) for number in range(case.processes)]
        self._deadline = time.monotonic() + case.job.time_limit_seconds

    def run(self) -> None:
        """Runs the job, three times if it is killed, and computes the figures of its answers.

        Raises:
            RunFailedError: A process failed or exceeded a time limit.
        """
        if self._case.job.is_killed:
            self._run_killed()
        else:
            self._run_once()
        job, figures = self._case.job, self._measurement.figures
        outcomes = [json.loads(Path(task.answers_path).read_text()) for task in self._tasks]
        answers = {key: text for outcome in outcomes for key, text in outcome["answers"].items()}
        figures.update(answer_figures(self._rows, answers, is_text_checked=self._case.contender.is_text_checked))
        if job.padded_tokens_per_second:
            figures.update(padding_figures(job, self._rows, outcomes[0]["figures"]))

    def _run_once(self) -> None:
        started_at, cpu_before = time.monotonic(), _children_cpu_seconds()
        processes = [self._spawn(number) for number in range(self._case.processes)]
        try:
            if len(processes) > 1:
                self._await_ready(processes)
                started_at = time.monotonic()
            self._start.touch()
            for process in processes:
                self._await_end(process)
        finally:
            for process in processes:
                _kill(process)
        seconds = time.monotonic() - started_at
        self._measurement.figures |= {
            "wall_seconds": seconds,
            "rows_per_second": len(self._rows) / seconds,
            "client_cpu_seconds": _children_cpu_seconds() - cpu_before,
        }

    def _run_killed(self) -> None:
        server, figures = self._server, self._measurement.figures
        if server is None:
            raise RuntimeError("A job with `is_killed` requires a server that counts its answers.")
        self._start.touch()
        process = self._spawn(0)
        while server.answered() < len(self._rows) / 2 and process.poll() is None:
            self._check_time()
            time.sleep(0.01)
        _kill(process)
        # Requests that were in flight at the kill are still completed and billed.
        if self._case.job.server is not None:
            time.sleep(2 * self._case.job.server.latency_seconds + 0.1)
        figures["answered_before_kill"] = server.answered()
        self._run_once()
        before = server.requests()
        figures["paid_twice"] = paid_twice(before)
        figures["paid_again_ratio"] = figures["paid_twice"] / figures["answered_before_kill"]
        figures["paid_twice_per_in_flight"] = figures["paid_twice"] / self._case.job.known_limits.max_in_flight
        self._run_once()
        figures["requests_next_run"] = len(server.requests()) - len(before)

    def _task(self, number: int) -> Task:
        case, directory = self._case, self._directory / f"process-{number}"
        directory.mkdir()
        rows_path = directory / "rows.jsonl"
        part = self._rows[number :: case.processes]
        rows_path.write_text("".join(json.dumps(row) + "\n" for row in part))
        url = self._server.url if self._server else ""
        return Task(
            directory=str(directory),
            rows_path=str(rows_path),
            answers_path=str(directory / "answers.json"),
            ready_path=str(directory / "ready"),
            start_path=str(self._start),
            url=url,
            openai_url=f"{url}/v1",
            requests_per_minute=case.job.known_limits.requests_per_minute,
            tokens_per_minute=case.job.known_limits.tokens_per_minute,
            max_in_flight=case.job.known_limits.max_in_flight,
            processes=case.processes,
            machines=case.processes if case.contender.has_machines else 1,
            padded_tokens_per_second=case.job.padded_tokens_per_second,
            max_padded_tokens=case.job.max_padded_tokens,
            options=case.contender.options,
        )

    def _spawn(self, number: int) -> subprocess.Popen[Any]:
        task, contender = self._tasks[number], self._case.contender
        directory = Path(task.directory)
        task.write(directory / "task.json")
        # Processes on one machine share this directory, which is deleted after the run.
        temporary = (directory if contender.has_machines else self._directory) / "tmp"
        temporary.mkdir(exist_ok=True)
        added = {"HOME": str(directory), "TMPDIR": str(temporary)}
        with (directory / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [str(self._case.python), "-m", contender.module, str(directory / "task.json")],
                cwd=directory,
                env=environment_of({**contender.environment, **added}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await_ready(self, processes: list[subprocess.Popen[Any]]) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while not all(Path(task.ready_path).exists() for task in self._tasks):
            if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
                raise RunFailedError(f"not ready: {self._quote()}")
            time.sleep(0.01)

    def _await_end(self, process: subprocess.Popen[Any]) -> None:
        try:
            status = process.wait(max(0.1, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise RunFailedError(f"stopped after {self._case.job.time_limit_seconds:g} s") from None
        if status:
            raise RunFailedError(f"exit status {status}: {self._quote()}")

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise RunFailedError(f"stopped after {self._case.job.time_limit_seconds:g} s")

    def _quote(self) -> str:
        """Returns the last output lines of the first process that wrote any."""
        for task in self._tasks:
            lines = (Path(task.directory) / "output.txt").read_text(errors="replace").split("\n")
            if quoted := [line.strip() for line in lines if line.strip()][-QUOTED_LINES:]:
                return " | ".join(quoted)[:160]
        return "no output"


def _children_cpu_seconds() -> float:
    """Returns the processor time of the exited child processes; the server is not included, as it still runs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _kill(process: subprocess.Popen[Any]) -> None:
    """Kills the process of a contender, which is the leader of its session, and all processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
