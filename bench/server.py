"""Runs the sandbox in a separate process, so that it shares no interpreter with a measured contender."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llmbeam_sandbox import FixedWindow, Latency, ModelSettings, Quota, Sandbox
from llmbeam_sandbox.core.records import RequestRecord
from llmbeam_sandbox.models.quota import QuotaLedger

from bench.jobs import ServerSettings
from bench.pool import PoolLedger
from bench.steps import SteppedLedger


class SandboxProcess:
    """A sandbox in a process that answers commands, as a context manager. It exits with its parent process.

    Args:
        arguments: Arguments of the interpreter.
        environment: Environment variables of the process.
        directory: Its working directory.

    Attributes:
        url: Address of the sandbox.
        pid: Id of the process.
    """

    def __init__(self, arguments: list[str], environment: dict[str, str], directory: Path | None = None) -> None:
        self._arguments = arguments
        self._environment = environment
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.pid = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._directory,
            env=self._environment,
        )
        self.pid = self._process.pid
        self.url = self._read()["url"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.communicate(timeout=30)

    def request(self, command: str) -> dict[str, Any]:
        """Sends a command; returns the reply."""
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("The server is not running; use it as a context manager.")
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process and self._process.stdout else ""
        if not line:
            raise RuntimeError("The server exited unexpectedly; see its output above.")
        reply: dict[str, Any] = json.loads(line)
        return reply


class ServerProcess(SandboxProcess):
    """A running server of a job of the benchmark.

    Args:
        settings: Behaviour of the server.
        directory: Directory for the request log.
        environment: Environment variables of the server's process.
    """

    def __init__(self, settings: ServerSettings, directory: Path, environment: dict[str, str]) -> None:
        super().__init__(["-m", "bench.server", json.dumps(asdict(settings))], environment, directory)
        self._log = directory / "requests.json"

    def answered(self) -> int:
        """Counts the answers computed so far."""
        return int(self.request("answered")["answered"])

    def max_in_flight(self) -> int:
        """Returns the maximum number of concurrent requests."""
        return int(self.request("max_in_flight")["max_in_flight"])

    def cpu_seconds(self) -> float:
        """Returns the processor time of the server, in seconds, start-up included."""
        return float(self.request("cpu_seconds")["cpu_seconds"])

    def capacity(self, seconds: float) -> float:
        """Returns the number of requests that its pool had capacity for in the first `seconds`."""
        return float(self.request(f"capacity {seconds}")["capacity"])

    def requests(self) -> list[RequestRecord]:
        """Returns the request log, without calls that are not metered."""
        self.request(f"requests {self._log}")
        records = [RequestRecord(**fields) for fields in json.loads(self._log.read_text())]
        self._log.unlink()
        return [record for record in records if record.method not in ("gemini.countTokens", "openai.models")]


def ledger_of(settings: ServerSettings) -> QuotaLedger:
    """Builds the ledger that the settings describe."""
    window = None
    if settings.window_requests is not None:
        window = FixedWindow(requests=settings.window_requests, seconds=settings.window_seconds)
    quota = Quota(
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        burst_seconds=settings.burst_seconds,
        window=window,
    )
    if settings.pool_requests_per_minute is not None:
        return PoolLedger(settings.pool_requests_per_minute)
    if settings.step_shares:
        return SteppedLedger(quota, settings.step_shares, settings.step_seconds)
    return QuotaLedger(quota)


def sandbox_of(settings: ServerSettings) -> Sandbox:
    """Builds the sandbox that the settings describe."""
    ledger = ledger_of(settings)
    latency = Latency(mean_seconds=settings.latency_seconds, sigma=settings.latency_sigma)
    sandbox = Sandbox(models=ModelSettings(quota=ledger.quota, latency=latency))
    if type(ledger) is not QuotaLedger:
        # `Sandbox.set_quota` supports neither steps nor a pool.
        sandbox._services.models.quotas._ledgers[""] = ledger
    return sandbox


def serve(settings: ServerSettings) -> None:
    """Serves requests, and replies to commands from standard input, until standard input ends."""
    # A killed client leaves incomplete requests; aiohttp would log each of them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    with sandbox_of(settings) as sandbox:
        _reply({"url": sandbox.url})
        for line in sys.stdin:
            command, _, path = line.strip().partition(" ")
            _reply(_execute(sandbox, command, path))


def _reply(reply: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(reply)}\n")
    sys.stdout.flush()


def _execute(sandbox: Sandbox, command: str, path: str) -> dict[str, Any]:
    if command == "answered":
        return {"answered": sum(record.is_billed for record in sandbox.requests)}
    if command == "max_in_flight":
        return {"max_in_flight": sandbox.stats()["max_in_flight"]}
    if command == "cpu_seconds":
        return {"cpu_seconds": time.process_time()}
    if command == "capacity":
        ledger = sandbox._services.models.quotas._ledgers[""]
        assert isinstance(ledger, PoolLedger)
        return {"capacity": ledger.capacity(float(path))}
    if command == "requests":
        Path(path).write_text(json.dumps([asdict(record) for record in sandbox.requests]))
        return {}
    raise ValueError(f"unknown command {command!r}")


if __name__ == "__main__":
    serve(ServerSettings(**json.loads(sys.argv[1])))
