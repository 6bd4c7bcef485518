"""Emulates a cloud with an exhausted shared pool, in a separate process: `python -m bench.exhausted_cloud`.

The cloud is the sandbox behind its proxy. Nine of ten requests for a model were rejected during the last hour,
and every request since then is rejected. The program prints one line of JSON, the environment variables with
which Google's clients use the emulated cloud. It then replies to each line of standard input, e.g. "requests",
with the number of calls of each method, and exits when standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import certifi

MODEL = "gemini-2.5-flash"


class ExhaustedCloud:
    """A running emulated cloud.

    Attributes:
        environment: Environment variables for clients of the cloud.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.environment: dict[str, str] = self._read()

    def requests(self) -> dict[str, int]:
        """Counts the calls of each method so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("requests\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError("The emulated cloud exited unexpectedly; see its output above.")
        reply: dict[str, Any] = json.loads(line)
        return reply


@contextmanager
def exhausted_cloud(latency_seconds: float = 0.0) -> Iterator[ExhaustedCloud]:
    """Runs an exhausted cloud while the body of the `with` block runs.

    Args:
        latency_seconds: Delay of each reply, in seconds, in addition to the time that the sandbox takes.
    """
    command = [sys.executable, "-m", "bench.exhausted_cloud", f"--latency-seconds={latency_seconds}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield ExhaustedCloud(process)
    finally:
        process.communicate(timeout=300)


def main() -> None:
    """Serves requests until standard input ends."""
    # Imported here, so that measured processes do not load the sandbox.
    from llmbeam_sandbox import Fault, Proxy, Sandbox
    from llmbeam_sandbox.network import proxy as proxy_module

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--latency-seconds", type=float, default=0.0, metavar="X", help="delay of each reply, in s (default: 0)"
    )
    latency_seconds = parser.parse_args().latency_seconds
    if latency_seconds:
        # The sandbox emulates only the latency of models; this adds network latency, half per direction.
        copy = proxy_module._copy

        async def delayed_copy(source: asyncio.StreamReader, *others: Any) -> None:
            await copy(_DelayedReader(source, latency_seconds / 2), *others)  # type: ignore[arg-type]

        proxy_module._copy = delayed_copy  # type: ignore[assignment]
    with Sandbox() as sandbox, Proxy(sandbox) as proxy:
        sandbox.monitoring.add_traffic(MODEL, minutes=60, requests_per_minute=10, rejected_per_minute=90)
        sandbox.faults.every("gemini.generateContent", 1, Fault(kind="rate-limit"))
        environment = proxy.environment()
        with Path(environment["REQUESTS_CA_BUNDLE"]).open("a") as authorities:
            # A real client reads this many certificates for each connection that it opens.
            authorities.write(Path(certifi.where()).read_text())
        _reply({**environment, "AIRFLOW_CONN_LLMBEAM_DEFAULT": json.dumps({"conn_type": "llmbeam"})})
        for _ in sys.stdin:
            _reply({name: stats["calls"] for name, stats in sandbox.stats()["methods"].items() if stats["calls"]})


class _DelayedReader:
    """Reader that returns the data of another reader after a delay."""

    def __init__(self, reader: asyncio.StreamReader, seconds: float) -> None:
        self._reader = reader
        self._seconds = seconds

    async def read(self, n: int) -> bytes:
        data = await self._reader.read(n)
        await asyncio.sleep(self._seconds)
        return data


def _reply(reply: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(reply)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
