"""The engine's event loop, for callers that wait."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import closing

from airflow_provider_llmbeam.counts import Counts
from airflow_provider_llmbeam.engine.engine import Engine, Observer
from airflow_provider_llmbeam.engine.journal import Journal
from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.reporting.metrics import BatchCounts, counts_of

#: How often a caller that waits looks up. Dataflow reads counters about every 10 s; a bar shows it at once.
SIGNAL_SECONDS = 0.5


class EngineThread:
    """Runs an engine on an event loop of its own, for callers that wait.

    Beam calls from bundle threads; client and governor live on one loop per process, whichever thread asks.
    """

    def __init__(self, open_engine: Callable[[], Engine], journal: Journal | None) -> None:
        self._journal = journal
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="llmbeam-engine", daemon=True)
        thread.start()

        async def open_on_loop() -> Engine:
            return open_engine()

        try:
            self._engine = asyncio.run_coroutine_threadsafe(open_on_loop(), loop).result()
        except BaseException:
            _stop(loop, thread)
            raise
        self._loop = loop
        self._signalled_seconds = 0
        weakref.finalize(self, _close, self._engine, loop, thread)

    def answer(
        self,
        prompts: Sequence[Prompt],
        fingerprints: Sequence[str],
        on_throttled: Callable[[int], None],
        on_counts: Callable[[Counts], None],
    ) -> list[Outcome]:
        """Answers a batch; what a former try of the same batch recorded is not asked again.

        Args:
            prompts: The batch.
            fingerprints: Of the prompts, for the journal.
            on_throttled: Told now and then, on the caller's thread, of whole seconds that the governor has kept
                requests waiting: a batch may take hours, and a runner that hears of it at the end has long
                since added workers.
            on_counts: Told now and then, on the caller's thread, of what has happened since it was last told.

        Raises:
            BudgetExceededError: The budget was spent before all were asked; the answers so far are recorded.
        """
        if self._journal is None:
            return self._ask(prompts, (), on_throttled, on_counts)
        with closing(self._journal.batch(prompts, fingerprints)) as record:
            missing = [prompt for prompt, known in zip(prompts, record.earlier, strict=True) if known is None]
            on_counts(counts_of(known for known in record.earlier if known is not None))
            asked = iter(self._ask(missing, (record,), on_throttled, on_counts))
            return [next(asked) if known is None else known for known in record.earlier]

    def _ask(
        self,
        prompts: Sequence[Prompt],
        observers: Sequence[Observer],
        on_throttled: Callable[[int], None],
        on_counts: Callable[[Counts], None],
    ) -> list[Outcome]:
        counts = BatchCounts()
        work = self._engine.answer(prompts, (*observers, counts))
        answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            is_over = bool(wait([answer], timeout=SIGNAL_SECONDS).done)
            if seconds := self._take_throttled_seconds():
                on_throttled(seconds)
            on_counts(counts.take())
            if is_over:
                return answer.result()

    def _take_throttled_seconds(self) -> int:
        seconds = int(self._engine.throttled_seconds) - self._signalled_seconds
        self._signalled_seconds += seconds
        return seconds


def _close(engine: Engine, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    async def close() -> None:
        await engine.aclose()
        await asyncio.sleep(0)  # a closed connection leaves its socket in the loop's next round

    asyncio.run_coroutine_threadsafe(close(), loop).result(timeout=10)
    _stop(loop, thread)


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=10)
    loop.close()
