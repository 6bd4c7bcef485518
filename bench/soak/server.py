"""The sandbox of a soak, in a separate process that exits with its parent."""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Self

from llmbeam_sandbox import Latency, ModelSettings, Sandbox
from llmbeam_sandbox.core.records import RequestLog, RequestRecord
from llmbeam_sandbox.services import METHODS

from bench.run import environment_of
from bench.server import SandboxProcess
from bench.soak.weather import CALM, Phase, RandomFaults, phases

LATENCY_SIGMA = 0.6


@dataclass(kw_only=True)
class Books:
    """What the server has seen so far.

    Attributes:
        requests: Number of requests.
        billed: Number of computed answers.
        statuses: Number of requests by HTTP status; "none" without an answer.
        faults: Number of faults by kind.
        restarts: Number of times that the server stopped listening.
        phase: Name of the present phase.
        cpu_seconds: Processor time of the server's process, in seconds.
    """

    requests: int = 0
    billed: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    phase: str = CALM.name
    cpu_seconds: float = 0.0


class CountingLog(RequestLog):
    """A log that counts records instead of keeping them: two hours at 200 rows/s would be 1.4 million."""

    def __init__(self, books: Books) -> None:
        super().__init__(METHODS)
        self._books = books

    def append(self, record: RequestRecord, epoch: int) -> None:
        """Counts a record."""
        self._books.requests += 1
        self._books.billed += record.is_billed
        self._books.statuses[str(record.http_status or "none")] += 1


class SoakServer(SandboxProcess):
    """A running server.

    Args:
        rows_per_second: Rate of the rows, to which quotas are relative.
        seed: Seed of all faults.
    """

    def __init__(self, rows_per_second: float, seed: int) -> None:
        arguments = [f"--rows-per-second={rows_per_second}", f"--seed={seed}"]
        super().__init__(["-m", "bench.soak.server", *arguments], environment_of({}))

    def books(self) -> Books:
        """Returns what the server has seen so far."""
        return Books(**self.request("books"))

    def calm(self) -> None:
        """Ends all faults; returns when the server listens."""
        self.request("calm")


class _Weather:
    """Changes the sandbox from phase to phase, on a thread of its own."""

    def __init__(self, rows_per_second: float, seed: int) -> None:
        self._rows_per_second = rows_per_second
        self._rng = random.Random(seed)
        self.books = Books()
        self.sandbox = Sandbox(seed=seed)
        self._faults = RandomFaults(METHODS, random.Random(seed + 1))
        # `Sandbox` has no parameters for these: its tests queue faults and read records one by one.
        self._services = self.sandbox._services
        self._services.backend.faults = self._faults
        self._services.backend.log = CountingLog(self.books)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weather")

    def __enter__(self) -> Self:
        self._set(CALM)
        self.sandbox.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.calm()
        self.sandbox.stop()

    def calm(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._set(CALM)
        self._faults.is_over = True

    def _run(self) -> None:
        for phase, seconds in phases(self._rng):
            self._set(phase)
            if phase.is_down:
                self.sandbox.stop()
                self.books.restarts += 1
            is_over = self._is_over.wait(seconds)
            if phase.is_down:
                self.sandbox.start()
            if is_over:
                return

    def _set(self, phase: Phase) -> None:
        latency = Latency(mean_seconds=phase.latency_seconds, sigma=LATENCY_SIGMA)
        settings: ModelSettings = self._services.models.settings
        self._services.models.settings = replace(settings, latency=latency)
        quota = phase.quota(self._rows_per_second)
        if quota != self._services.models.quota:
            self.sandbox.set_quota(quota)
        self._faults.phase = phase
        self.books.phase = phase.name

    def state(self) -> dict[str, Any]:
        seen = {"statuses": dict(self.books.statuses), "faults": dict(self._faults.taken)}
        return {**vars(self.books), **seen, "cpu_seconds": time.process_time()}


def main() -> None:
    """Serves requests, and replies to commands from standard input, until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows-per-second", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    # Stopping the server leaves incomplete requests; aiohttp would log each of them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    with _Weather(options.rows_per_second, options.seed) as weather:
        _reply({"url": weather.sandbox.url})
        for line in sys.stdin:
            if line.strip() == "calm":
                weather.calm()
            _reply(weather.state())


def _reply(reply: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(reply)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
