"""The thread with the event loop of the engine, for blocking callers."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.journal.journal import BatchJournal, Journal
from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.request import NextTurn
from airflow_provider_llmbeam.exceptions import JobCancelledError
from airflow_provider_llmbeam.pipeline.audit.trail import AuditedRecord
from airflow_provider_llmbeam.pipeline.conversation.turns import Dialogues
from airflow_provider_llmbeam.pipeline.launch.interruption import GRACE_SECONDS, stopped_at_signal
from airflow_provider_llmbeam.pipeline.reporting.metrics import BatchCounts, counts_of
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.protocol.counts import Counts

_log = logging.getLogger("llmbeam")

ResultT = TypeVar("ResultT")

#: Interval between updates of the counters, in seconds. Dataflow reads them about every 10 s.
SIGNAL_SECONDS = 0.5
#: Interval between two looks for the stop file of the job, in seconds: one small request for each process.
STOP_POLL_SECONDS = 2.0


class EngineThread:
    """Runs an engine on its own event loop, for blocking callers.

    Beam calls from the threads of bundles; client and governor use one event loop per process.

    Args:
        open_engine: Opens the engine.
        journal: Journal of the answers; `None` for none.
        price: Price of the tokens, for the counts; `None` if it is not known.
        stop_is_requested: Returns whether the job is to end; called every two seconds while a batch is answered.
        on_stopped: Called when a batch of such a job has recorded what was in flight, before it fails.
        on_ended: Called when a batch has ended, answered or not, and by `end`.
    """

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        journal: Journal | None,
        price: Price | None = None,
        stop_is_requested: Callable[[], bool] = lambda: False,
        on_stopped: Callable[[], None] = lambda: None,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._journal = journal
        self._price = price
        self._stop_is_requested = stop_is_requested
        self._on_stopped = on_stopped
        self._on_ended = on_ended
        self._stop_polled_at = -math.inf
        self._is_stopping = False
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
        audited: Callable[[BatchJournal], AuditedRecord | BatchJournal] | None = None,
    ) -> list[Outcome]:
        """Answers a batch; answers that earlier attempts have recorded are not requested again.

        Args:
            prompts: The batch.
            fingerprints: Fingerprint of each prompt, for the journal.
            on_throttled: Called regularly, on the thread of the caller, with the whole seconds that requests have
                waited for the governor. A batch may take hours; a runner that learns of the throttling only at
                its end adds workers meanwhile.
            on_counts: Called regularly, on the thread of the caller, with the counts since the last call.
            audited: Adds the audit to the journal of the batch, see `record_of`; `None` for the journal as it is.

        Raises:
            BudgetExceededError: The budget was spent before all prompts were sent; the answers are recorded.
            JobCancelledError: The job is to end; what was in flight is recorded, and nothing more is sent.
            JobFailedError: The journal cannot be written.
            ModelUnavailableError: The server is down, or answers no row; the answers so far are recorded.
        """
        if self._journal is None:
            return self._wait_for_answers(prompts, None, on_throttled, on_counts)
        with self._told_end():
            batch = self._journal.batch(prompts, fingerprints)
            record = batch if audited is None else audited(batch)
            with closing(record):
                each = list(zip(prompts, record.earlier, strict=True))
                # Equal prompts of a batch, which a stream may have, are sent once.
                missing = list(dict.fromkeys(prompt for prompt, known in each if known is None))
                on_counts(counts_of((known for known in record.earlier if known is not None), self._price))
                if missing:
                    record.open()
                answers = self._wait_for_answers(missing, record, on_throttled, on_counts)
                new = dict(zip(missing, answers, strict=True))
                return [new[prompt] if known is None else known for prompt, known in each]

    def converse(
        self,
        dialogues: Dialogues,
        on_throttled: Callable[[int], None],
        on_counts: Callable[[Counts], None],
        audited: Callable[[BatchJournal], AuditedRecord] | None = None,
    ) -> None:
        """Answers the turns of some conversations; see `answer`, also for what it raises."""
        assert self._journal is not None
        with self._told_end():
            recorded, batch = self._journal.conversations(dialogues.names, dialogues.fingerprints)
            record = batch if audited is None else audited(batch)
            with closing(record):
                prompts = dialogues.begin(recorded)
                on_counts(dialogues.take_counts(self._price))
                if prompts:
                    record.open()
                self._wait_for_answers(prompts, record, on_throttled, on_counts, dialogues.next_turn)
            on_counts(dialogues.take_counts(self._price))

    @property
    def max_instances(self) -> int:
        """Maximum number of prompts of a request."""
        return self._engine.max_instances

    def submit(self, prompts: Sequence[Prompt]) -> Future[list[Outcome]]:
        """Begins to answer prompts, and returns at once; no journal records the outcomes."""
        return self.start(lambda engine: engine.answer(prompts))

    def start(self, work: Callable[[Engine], Coroutine[Any, Any, ResultT]]) -> Future[ResultT]:
        """Begins work on the event loop of the engine, and returns at once."""
        return asyncio.run_coroutine_threadsafe(work(self._engine), self._loop)

    def end(self) -> None:
        """Ends what was begun with `start`: what was learned is kept for the next run."""
        self._on_ended()

    @contextmanager
    def _told_end(self) -> Iterator[None]:
        """Tells the callbacks how a batch, the body, has ended; a signal to this process ends its sending."""
        try:
            try:
                with stopped_at_signal(partial(self._loop.call_soon_threadsafe, self._interrupt)):
                    yield
            finally:
                self._on_ended()
        except JobCancelledError:
            self._on_stopped()
            raise

    def _wait_for_answers(
        self,
        prompts: Sequence[Prompt],
        record: BatchJournal | AuditedRecord | None,
        on_throttled: Callable[[int], None],
        on_counts: Callable[[Counts], None],
        next_turn: NextTurn | None = None,
    ) -> list[Outcome]:
        counts = BatchCounts(self._price)
        work = self._engine.answer(prompts, (counts,), record, next_turn)
        answer = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            self._stop_if_requested()
            is_over = bool(wait([answer], timeout=SIGNAL_SECONDS).done)
            if seconds := self._take_throttled_seconds():
                on_throttled(seconds)
            on_counts(counts.take())
            if is_over:
                return answer.result()

    def _stop_if_requested(self) -> None:
        """Ends the engine if the job is to end."""
        now = time.monotonic()
        if self._is_stopping or now - self._stop_polled_at < STOP_POLL_SECONDS:
            return
        self._stop_polled_at = now
        if self._stop_is_requested():
            self._loop.call_soon_threadsafe(self._stop_sending)

    def _interrupt(self) -> None:
        """Ends the sending after a signal, on the event loop."""
        if self._stop_sending():
            _log.warning(
                "Interrupted: nothing more is sent, and answers to the requests in flight are recorded for up to "
                "%.0f s. A second signal ends the job at once, and what is in flight is perhaps paid for again.",
                GRACE_SECONDS,
            )

    def _stop_sending(self) -> bool:
        """Ends the sending as the job is to end, on the event loop; returns whether it went on."""
        if self._is_stopping:
            return False
        self._is_stopping = True
        self._engine.stop(
            JobCancelledError(
                "The job is being cancelled: requests in flight were awaited, and nothing more is sent or "
                "billed. The answers so far are in the journal."
            )
        )
        return True

    def _take_throttled_seconds(self) -> int:
        seconds = int(self._engine.throttled_seconds) - self._signalled_seconds
        self._signalled_seconds += seconds
        return seconds


def _close(engine: Engine, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    async def close() -> None:
        submitted = asyncio.all_tasks() - {asyncio.current_task()}  # nobody waits for them any more
        for task in submitted:
            task.cancel()
        await asyncio.gather(*submitted, return_exceptions=True)
        await engine.aclose()
        await asyncio.sleep(0)  # the socket of a closed connection is released in the next iteration of the loop

    asyncio.run_coroutine_threadsafe(close(), loop).result(timeout=10)
    _stop(loop, thread)


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=10)
    loop.close()
