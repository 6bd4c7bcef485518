"""Input and output of a contender's process. Imports only the standard library."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Task:
    """The part of a job that one process runs. It is passed as JSON, so paths are strings.

    Attributes:
        directory: Working directory, kept between the runs of one case; it may contain state.
        rows_path: Path of the rows, as JSON lines with `id` and `text`.
        answers_path: Path of the file that `finish` writes.
        ready_path: Path of the file that `wait_for_start` creates.
        start_path: Path of the file that is created when all processes may start.
        url: URL of the server's Gemini API; "" if there is no server.
        openai_url: URL of the server's OpenAI API.
        requests_per_minute: Request quota of all processes together; `None` if the client does not know it.
        tokens_per_minute: Token quota of all processes together; `None` if the client does not know it.
        max_in_flight: Maximum number of concurrent requests per process.
        processes: Number of processes that share the job.
        machines: Number of machines that the processes emulate.
        padded_tokens_per_second: Throughput of a static-batch server; `None` for other jobs.
        max_padded_tokens: Maximum number of padded tokens in a batch of that server; `None` for other jobs.
        options: Options of the contender.
    """

    directory: str
    rows_path: str
    answers_path: str
    ready_path: str
    start_path: str
    url: str
    openai_url: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_in_flight: int
    processes: int
    machines: int
    padded_tokens_per_second: int | None = None
    max_padded_tokens: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_command_line(cls) -> Self:
        """Reads the task from the file whose path is the first command line argument."""
        return cls(**json.loads(Path(sys.argv[1]).read_text()))

    def write(self, path: Path) -> None:
        """Writes the task for `from_command_line`."""
        path.write_text(json.dumps(asdict(self)))

    def rows(self) -> list[dict[str, Any]]:
        """Reads the rows."""
        return [json.loads(line) for line in Path(self.rows_path).read_text().splitlines()]

    def wait_for_start(self, timeout_seconds: float = 120) -> None:
        """Signals that all imports are complete, and waits for the start signal.

        Raises:
            TimeoutError: The start signal did not arrive in time.
        """
        Path(self.ready_path).touch()
        deadline = time.monotonic() + timeout_seconds
        while not Path(self.start_path).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no start signal within {timeout_seconds:g} s")
            time.sleep(0.005)

    def finish(self, answers: Mapping[int, str | None], figures: Mapping[str, float] | None = None) -> None:
        """Writes the answers by row id, `None` or no entry for a row without one, and the contender's figures."""
        outcome = {"answers": {str(key): text for key, text in answers.items()}, "figures": dict(figures or {})}
        Path(self.answers_path).write_text(json.dumps(outcome))
