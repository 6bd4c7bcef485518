"""The thread with the event loop of the engine, for blocking callers."""

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

#: Interval between updates of the counters, in seconds. Dataflow reads them about every 10 s.
SIGNAL_SECONDS = 0.5


class EngineThread:
    """Runs an engine on its own event loop, for blocking callers.

    Beam calls from the threads of bundles; client and governor use one event loop per process.
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
        """Answers a batch; answers recorded by an earlier attempt of the same batch are not requested again.

        Args:
            prompts: The batch.
            fingerprints: Fingerprint of each prompt, for the journal.
            on_throttled: Called regularly, on the thread of the caller, with the whole seconds that requests have
                waited for the governor. A batch may take hours; a runner that learns of the throttling only at
                its end adds workers meanwhile.
            on_counts: Called regularly, on the thread of the caller, with the counts since the last call.

        Raises:
            BudgetExceededError: The budget was spent before all prompts were sent; the answers are recorded.
        """
        if self._journal is None:
            return self._send(prompts, (), on_throttled, on_counts)
        with closing(self._journal.batch(prompts, fingerprints)) as record:
            missing = [prompt for prompt, known in zip(prompts, record.earlier, strict=True) if known is None]
            on_counts(counts_of(known for known in record.earlier if known is not None))
            new = iter(self._send(missing, (record,), on_throttled, on_counts))
            return [next(new) if known is None else known for known in record.earlier]

    def _send(
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
        await asyncio.sleep(0)  # the socket of a closed connection is released in the next iteration of the loop

    asyncio.run_coroutine_threadsafe(close(), loop).result(timeout=10)
    _stop(loop, thread)


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=10)
    loop.close()
