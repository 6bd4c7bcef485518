"""What the benchmark hands to a contender's process, and what it gets back. Standard library only."""

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
    """One process' part of a job. Paths are text, as this travels as JSON.

    Attributes:
        directory: Working directory, kept between the runs of one case: state may live here.
        rows_path: Rows as JSON lines with `id` and `text`.
        answers_path: Where `finish` writes.
        ready_path: Written by `wait_for_start`.
        start_path: Exists once everybody may begin.
        url: Of the server, Gemini API; "" when there is none.
        openai_url: Of the server, OpenAI API.
        requests_per_minute: Quota of all processes together; `None` when not known to the client.
        tokens_per_minute: Likewise.
        max_in_flight: Requests under way at once, per process.
        processes: How many share the job.
        machines: On how many machines they believe to be.
        padded_tokens_per_second: Of a static-batch server; `None` when it is another job.
        max_padded_tokens: What a batch of it may hold.
        options: The contender's own.
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
        """Reads the task that the first argument names."""
        return cls(**json.loads(Path(sys.argv[1]).read_text()))

    def write(self, path: Path) -> None:
        """Writes the task for `from_command_line`."""
        path.write_text(json.dumps(asdict(self)))

    def rows(self) -> list[dict[str, Any]]:
        """Reads the rows."""
        return [json.loads(line) for line in Path(self.rows_path).read_text().splitlines()]

    def wait_for_start(self, patience_seconds: float = 120) -> None:
        """Says that imports are done, and waits for the others.

        Raises:
            TimeoutError: The start was not given in time.
        """
        Path(self.ready_path).touch()
        deadline = time.monotonic() + patience_seconds
        while not Path(self.start_path).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no start within {patience_seconds:g} s")
            time.sleep(0.005)

    def finish(self, answers: Mapping[int, str | None], figures: Mapping[str, float] | None = None) -> None:
        """Hands back the answer of each row, `None` or nothing for rows without one, and figures of one's own."""
        outcome = {"answers": {str(key): text for key, text in answers.items()}, "figures": dict(figures or {})}
        Path(self.answers_path).write_text(json.dumps(outcome))
