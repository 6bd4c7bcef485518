"""SIGINT and SIGTERM: what is in flight is recorded, and one sentence says what is left of the job."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner, FlinkRunner

#: Time for the requests in flight after the first signal, in seconds. Airflow kills a task five seconds after its
#: SIGTERM (`escalation_delay` of its supervisor, 3.1 to 3.3), and with it the process of its job.
GRACE_SECONDS = 4.0
#: Interval between two looks for the end of the batches, in seconds.
_POLL_SECONDS = 0.02

#: For each batch that is being answered in this process what ends its sending, and the time for that, in seconds.
_stops: list[tuple[Callable[[], object], float]] = []
#: Whether a signal has come in the body of `signals_handled`.
_was_signalled = False


class IdleInterrupt(KeyboardInterrupt):
    """The first signal came while nothing was being answered."""


def raise_if_signalled() -> None:
    """Raises the interruption for an error that follows from a signal, when the requests in flight are recorded.

    The runner may have ended before its workers, such as Prism, which gets the signal, too.

    Raises:
        KeyboardInterrupt: There was a signal.
    """
    if _was_signalled:
        while _stops:
            time.sleep(_POLL_SECONDS)
        raise KeyboardInterrupt from None


@contextmanager
def stopped_at_signal(stop: Callable[[], object], grace_seconds: float = GRACE_SECONDS) -> Iterator[None]:
    """Has the first signal call a function during the body, which answers a batch.

    Args:
        stop: Ends the sending of the batch. It is called in a signal handler, so it must not take a lock.
        grace_seconds: Time after which the body is interrupted.
    """
    entry = stop, grace_seconds
    _stops.append(entry)
    try:
        yield
    finally:
        _stops.remove(entry)


@contextmanager
def signals_handled() -> Iterator[None]:
    """Handles SIGINT and SIGTERM during the body; a signal that this process ignores stays ignored.

    While a batch is answered in this process, the first signal ends the sending: the batch fails as soon as its
    requests in flight are recorded. The second signal, or the end of the grace, interrupts the body.

    Only the main thread may call it.

    Raises:
        KeyboardInterrupt: The body was interrupted, or failed after a signal.
    """
    global _was_signalled

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        global _was_signalled
        is_first, _was_signalled = not _was_signalled, True
        if not is_first:
            raise KeyboardInterrupt
        if not _stops:
            raise IdleInterrupt
        stops = tuple(_stops)
        for stop, _ in stops:
            stop()
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, on_signal)
        signal.setitimer(signal.ITIMER_REAL, max(seconds for _, seconds in stops))

    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, on_signal)
    try:
        yield
    except Exception:
        raise_if_signalled()
        raise
    finally:
        _was_signalled = False
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def what_remains(spec: JobSpec | None) -> str:
    """Returns one sentence about what runs, is billed and is kept; `None` for a job that was not read yet."""
    if spec is None:
        return JobSpecError.remains
    if isinstance(spec.runner, DataflowRunner):
        return (
            "The job may be running, and billing, on Dataflow: the same command finds it, and `gcloud dataflow "
            "jobs cancel` ends it."
        )
    if isinstance(spec.runner, FlinkRunner):
        return (
            f"The job may be running, and billing, on the Flink cluster at {spec.runner.rest_url}: its page, or "
            "PATCH /jobs/ID?mode=cancel, ends it."
        )
    rest = f"The answers so far are in {spec.paths.journal_uri!r}; the same command sends only the rest."
    if spec.inference.mode != "online":
        rest += " Batch-inference jobs go on, and bill: the same command finds them and uses their answers."
    return rest
