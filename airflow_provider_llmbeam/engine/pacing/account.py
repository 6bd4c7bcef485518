"""The account of this process at the ledger of a budget that many runs share."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.spec.protocol.counts import NANO

_log = logging.getLogger(__name__)


class ChangeLedger(Protocol):
    """Changes the ledger in its file; changes that other processes make at the same time are all made."""

    def __call__(self, changed: Callable[[Ledger], Ledger], /) -> Ledger:
        """Returns the changed ledger; see `pipeline.shared_budget.LedgerFile`."""
        ...


def _call_in_thread(called: Callable[[], None]) -> None:
    threading.Thread(target=called, name="llmbeam-budget", daemon=True).start()


def _call_later(seconds: float, called: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, called)
    timer.daemon = True
    timer.start()


class Account:
    """Reserves what requests may cost, from blocks that it takes from the ledger in a thread of its own.

    Requests are sent only while all they may cost is taken, so a budget is exceeded by no more than answers cost
    above their estimate. Its methods may be called from any thread.

    Args:
        change: Changes the ledger.
        usd: The budget, in US dollars.
        over: What the budget is for, as its ledger is called.
        name: Name of this account, which no other process has.
        interval_seconds: Least time between two writes but the first ones, between which it doubles from a second.
            Cloud Storage takes one write per second and object, of all runs.
        first_requests: Number of requests that the first block is for.
        clock: Monotonic clock, in seconds.
        in_background: Calls a function in another thread.
        call_later: Calls a function after so many seconds.
    """

    #: Time for which a block lasts at the rate of the last one, in intervals, and at least in seconds.
    BLOCK_INTERVALS, BLOCK_SECONDS = 3.0, 10.0
    #: Share of a block that is left when the next one is taken.
    REFILL_RATIO = 0.34
    #: Time after which a request that waits for a block asks again, in seconds.
    POLL_SECONDS = 0.1

    def __init__(
        self,
        change: ChangeLedger,
        usd: float,
        *,
        over: str,
        name: str,
        interval_seconds: float,
        first_requests: int,
        clock: Callable[[], float] = time.monotonic,
        in_background: Callable[[Callable[[], None]], None] = _call_in_thread,
        call_later: Callable[[float, Callable[[], None]], None] = _call_later,
    ) -> None:
        self._change, self._usd, self._over, self._base_name = change, usd, over, name
        self._interval_seconds = interval_seconds
        self._first_requests = first_requests
        self._clock = clock
        self._in_background, self._call_later = in_background, call_later
        self._lock = threading.RLock()
        self._writing = threading.Lock()
        self._closings = self._writes = 0
        self._taken = self._spent = self._reserved = self._block = 0
        self._spent_at_write, self._written_at = 0, -math.inf
        self._is_asking = self._is_refused = self._is_spent = self._is_closing = False
        self._error: Exception | None = None
        self._left_usd = usd

    @property
    def is_spent(self) -> bool:
        """Whether a request was refused when none was in flight."""
        return self._is_spent

    @property
    def refusal(self) -> str:
        """Why nothing more is admitted, for a message."""
        return (
            f"of the ${self._usd:,.6g} of `limits.budget` {self._over!r}, which other runs spend, too, "
            f"${self._left_usd:,.6g} are neither spent nor reserved for requests, less than the next one may cost"
        )

    def admit(self, cost: int) -> float:
        """Reserves what a request may cost, in billionths of a US dollar, or returns how long to wait.

        Returns:
            0 if it is reserved; else the seconds after which to try again, infinite once the budget is spent.

        Raises:
            Exception: The ledger could not be read or written.
        """
        with self._lock:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            free = self._taken - self._spent - self._reserved
            if not self._is_spent and cost <= free:
                self._reserved += cost
                if free - cost < self.REFILL_RATIO * self._block:
                    self._ask(cost)
                return 0.0
            if not self._is_spent:
                self._ask(cost)
            return math.inf if self._is_spent else self.POLL_SECONDS

    def release(self, cost: int) -> None:
        """Ends the reservation of a request, whose replies were added before."""
        with self._lock:
            self._reserved -= cost
            if not self._reserved:  # what was in flight may have cost less
                self._is_refused = False

    def add(self, cost: int) -> None:
        """Adds what a reply has cost, in billionths of a US dollar."""
        with self._lock:
            self._spent += cost

    def close(self, *, is_end: bool = False) -> None:
        """Returns what is left of the last block, unless requests are in flight.

        The next request opens the account again, under another name. After a write just now it is returned later,
        if nothing is in flight then.

        Args:
            is_end: Whether the process ends, and there is no later.
        """
        with self._writing:
            with self._lock:
                if self._reserved or self._is_asking or not self._taken:
                    return
                if not is_end and (seconds := self._seconds_to_write()) > 0:
                    if not self._is_closing:
                        self._is_closing = True
                        self._call_later(seconds, self._close_later)
                    return
                name, spent, self._closings = self._name, self._spent, self._closings + 1
                self._taken = self._spent = self._spent_at_write = 0
                self._written_at = self._clock()
            try:
                self._change(lambda ledger: ledger.close(name, spent))
            except Exception as error:  # noqa: BLE001 - the answers are there
                _log.warning("What this process did not spend of budget %r stays taken: %s", self._over, error)

    def _close_later(self) -> None:
        self._is_closing = False
        self.close()

    @property
    def _name(self) -> str:
        return f"{self._base_name}.{self._closings}"

    def _ask(self, cost: int) -> None:
        """Takes the next block in a thread, if it is time for it."""
        if self._is_asking or self._is_refused or self._seconds_to_write() > 0:
            return
        self._is_asking, passed = True, self._clock() - self._written_at
        seconds = max(self.BLOCK_SECONDS, self.BLOCK_INTERVALS * self._interval_seconds)
        recent = (self._spent - self._spent_at_write) / max(passed, 1.0)
        self._block = max(round(recent * seconds), cost * (1 if self._taken else self._first_requests))
        used = self._spent + self._reserved
        self._in_background(partial(self._take, used + cost, used + self._block))

    def _seconds_to_write(self) -> float:
        return self._written_at + min(self._interval_seconds, 2.0**self._writes) - self._clock()

    def _take(self, least: int, wanted: int) -> None:
        ledger, error = None, None
        with self._writing:
            try:
                ledger = self._change(lambda before: before.take(self._name, least, wanted))
            except Exception as raised:  # noqa: BLE001 - `admit` raises it
                error = raised
            with self._lock:
                self._error, self._is_asking = error, False
                self._written_at, self._spent_at_write = self._clock(), self._spent
                self._writes += 1
                if ledger is not None:
                    self._taken = ledger.open.get(self._name, 0)
                    self._is_refused = self._taken < least
                    self._is_spent = self._is_refused and not self._reserved
                    left = ledger.left_nano_usd + self._taken - self._spent - self._reserved
                    self._left_usd = max(0.0, left / NANO)
