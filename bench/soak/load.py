"""The rows of a soak: batches through the engine and its journal, from several threads, as Beam calls it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.journal.journal import Journal
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RetryPolicy
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.providers.gemini.client import GeminiBackend
from airflow_provider_llmbeam.spec import GeminiModel, Generation
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter

MODEL = "gemini-2.5-flash"
#: Time of rows in one batch, in seconds; several batches are answered at once.
BATCH_SECONDS = 5.0
THREADS = 8
#: Every so many batches one is answered again, as after a lost bundle; all of it is in the journal.
REPEATED_EVERY = 10
MAX_IN_FLIGHT = 128
REQUEST_TIMEOUT_SECONDS = 30.0
#: The quota that the engine is told, as a multiple of the rows per second.
KNOWN_RATE = 1.5
_ROW = re.compile(r"Row (\d+)\b")


@dataclass(kw_only=True)
class Counts:
    """Rows and requests so far.

    Attributes:
        issued: Number of distinct rows.
        answered: Number of distinct rows with an answer.
        failed: Number of failures by kind; such a row is given to the engine again in a later batch.
        misdirected: Number of answers that belong to another row.
        repeated: Number of answered rows that were given to the engine again.
        changed: Number of these whose answer differed.
        requests: Number of requests of the engine.
        rejections: Number of 429s that the engine received.
        completions: Number of answers that the engine received.
    """

    issued: int = 0
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    misdirected: int = 0
    repeated: int = 0
    changed: int = 0
    requests: int = 0
    rejections: int = 0
    completions: int = 0

    def sent(self) -> None:
        """Counts a request."""
        self.requests += 1

    def rejected(self, hold_seconds: float) -> None:
        """Counts a 429."""
        self.rejections += 1

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """Counts an answer."""
        self.completions += isinstance(outcome, Completion)


class Load:
    """The engine and the rows that it is given.

    Args:
        url: Address of the server.
        rows_per_second: Rate of new rows.
        directory: Directory of the journal.
    """

    def __init__(self, url: str, rows_per_second: float, directory: Path) -> None:
        self.counts = Counts()
        self._rows_per_second = rows_per_second
        model, generation = GeminiModel(name=MODEL, base_url=url), Generation(max_output_tokens=64)
        self._fingerprint = Fingerprinter(model, generation, None, None)
        self._journal_path = directory
        self._journal = Journal(f"{directory}/", job="soak", files=storage)
        self._failed_rows: list[int] = []
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

        def open_engine() -> Engine:
            self._loop = asyncio.get_running_loop()
            return Engine(
                GeminiBackend(model, generation, None),
                governor=Governor(requests_per_minute=KNOWN_RATE * 60 * rows_per_second),
                buckets=LengthBuckets((128, 512), 64),
                parser=OutputParser(None),
                policy=RetryPolicy(max_attempts=5, max_throttled_seconds=600),
                max_in_flight=MAX_IN_FLIGHT,
                request_timeout_seconds=REQUEST_TIMEOUT_SECONDS,
                observers=[self.counts],
            )

        self._engine = EngineThread(open_engine, self._journal)

    @property
    def tasks(self) -> int:
        """Number of tasks on the event loop of the engine."""
        return len(asyncio.all_tasks(self._loop)) if self._loop else 0

    @property
    def journal_index_bytes(self) -> int:
        """Memory of the journal's index, which has eight bytes for each recorded answer."""
        return sum(index.hashes.itemsize * len(index.hashes) for index in list(self._journal._indexes.values()))

    @property
    def segments(self) -> int:
        """Number of segments of the journal."""
        return len(self._journal._indexes)

    def run(self, seconds: float) -> None:
        """Gives rows to the engine for a time, at most `THREADS` batches at once, and waits for their outcomes."""
        size = max(1, round(self._rows_per_second * BATCH_SECONDS))
        started_at = time.monotonic()
        running: set[Future[None]] = set()
        with ThreadPoolExecutor(THREADS, thread_name_prefix="batch") as pool:
            for number in range(int(seconds / BATCH_SECONDS)):
                time.sleep(max(0.0, started_at + number * BATCH_SECONDS - time.monotonic()))
                while len(running) >= THREADS:
                    _, running = _checked(*wait(running, return_when=FIRST_COMPLETED))
                if time.monotonic() - started_at > seconds:
                    break  # the machine is too slow for the rate; the samples show the rate that was reached
                running.add(pool.submit(self._answer, self._rows(size), is_repeated=number % REPEATED_EVERY == 0))
            _checked(*wait(running))

    def finish(self) -> None:
        """Gives the rows that failed to the engine until all are answered."""
        while self._failed_rows:
            self._answer(self._rows(0), is_repeated=False)

    def _rows(self, new: int) -> list[int]:
        """Returns new rows, and those that failed before."""
        with self._lock:
            failed, self._failed_rows = self._failed_rows, []
            first, self.counts.issued = self.counts.issued, self.counts.issued + new
        return [*failed, *range(first, first + new)]

    def _answer(self, rows: Sequence[int], *, is_repeated: bool) -> None:
        prompts = [Prompt(f"Row {row}: name a colour.") for row in rows]
        outcomes = self._send(prompts)
        failed = []
        with self._lock:
            for row, outcome in zip(rows, outcomes, strict=True):
                if isinstance(outcome, Completion):
                    found = _ROW.match(outcome.text)
                    self.counts.misdirected += found is None or int(found[1]) != row
                    self.counts.answered += 1
                else:
                    self.counts.failed[outcome.kind] += 1
                    failed.append(row)
            self._failed_rows += failed
        if is_repeated and not failed:
            again = self._send(prompts)
            with self._lock:
                self.counts.repeated += len(again)
                self.counts.changed += sum(
                    not isinstance(after, Completion) or after.text != before.text
                    for before, after in zip(outcomes, again, strict=True)
                    if isinstance(before, Completion)
                )

    def _send(self, prompts: Sequence[Prompt]) -> list[Outcome]:
        fingerprints = [self._fingerprint(prompt.text, prompt.system, prompt.media) for prompt in prompts]
        return self._engine.answer(prompts, fingerprints, lambda _: None, lambda _: None)


def _checked(done: set[Future[None]], running: set[Future[None]]) -> tuple[set[Future[None]], set[Future[None]]]:
    for future in done:
        future.result()
    return done, running
