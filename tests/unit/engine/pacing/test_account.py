from __future__ import annotations

import math
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.pacing.account import Account
from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.spec.protocol.counts import NANO

CENT = NANO // 100


class File:
    """The file of a ledger, which counts its writes."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.usd = 1.0
        self.writes = 0
        self.fault: Exception | None = None
        self._lock = threading.Lock()

    def change(self, changed: Callable[[Ledger], Ledger]) -> Ledger:
        with self._lock:
            if self.fault is not None:
                raise self.fault
            ledger = changed(Ledger.read(self.content, self.usd, "x"))
            self.writes += ledger.content() != self.content
            self.content = ledger.content()
            return ledger

    @property
    def ledger(self) -> Ledger:
        return Ledger.read(self.content, 1.0, "x")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def account_of(file: File, usd: float = 1.0, **changes: Any) -> Account:
    file.usd = usd
    return Account(
        file.change,
        usd,
        **{
            "over": "month",
            "name": "a",
            "interval_seconds": 0.0,
            "first_requests": 4,
            "clock": Clock(),
            "in_background": lambda called: called(),
            **changes,
        },
    )


def send(account: Account, expected: int, cost: int | None = None) -> bool:
    """Sends one request; returns whether it was admitted."""
    while (wait := account.admit(expected)) > 0:
        if wait == math.inf:
            return False
    account.add(expected if cost is None else cost)
    account.release(expected)
    return True


def test_a_budget_is_spent_to_the_last_request_that_fits() -> None:
    file = File()
    account = account_of(file)
    assert [send(account, 3 * CENT) for _ in range(40)] == [True] * 33 + [False] * 7
    assert account.is_spent
    assert "of the $1 of `limits.budget` 'month'" in account.refusal
    assert "$0.01 are neither spent nor reserved" in account.refusal


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(0, 12)), max_size=120))
def test_runs_together_exceed_it_by_no_more_than_answers_cost_above_their_estimate(
    requests: list[tuple[int, int, int]],
) -> None:
    file = File()
    accounts = [account_of(file, name=name) for name in "abc"]
    spent = above = 0
    for index, expected, cost in requests:
        if send(accounts[index], expected * CENT, cost * CENT):
            spent += cost * CENT
            above += max(0, cost - expected) * CENT
        assert spent <= NANO + above
    for account in accounts:
        account.close()
    assert file.ledger.taken_nano_usd == spent
    assert file.ledger.open == {}


def test_a_request_waits_while_others_in_flight_may_cost_less_than_was_reserved() -> None:
    account = account_of(File())
    assert account.admit(60 * CENT) > 0
    assert account.admit(60 * CENT) == 0
    assert account.admit(60 * CENT) > 0
    account.add(5 * CENT)
    account.release(60 * CENT)
    assert send(account, 60 * CENT)
    assert not send(account, 60 * CENT)


def test_what_a_killed_process_had_taken_stays_taken_and_its_retry_opens_another_account() -> None:
    file = File()
    killed = account_of(file)
    assert send(killed, CENT)
    taken = file.ledger.taken_nano_usd
    assert CENT <= taken <= 4 * CENT, "the first block is for four requests"
    retry = account_of(file, name="b")
    assert sum(send(retry, CENT) for _ in range(200)) == 100 - taken // CENT


def test_a_batch_that_ended_returns_the_rest_and_the_next_one_goes_on() -> None:
    file = File()
    account = account_of(file)
    for _ in range(3):
        assert send(account, CENT)
        account.close()
        assert (file.ledger.open, file.ledger.ended_nano_usd % CENT) == ({}, 0)
    assert file.ledger.ended_nano_usd == 3 * CENT


def test_nothing_is_returned_while_requests_are_in_flight() -> None:
    file = File()
    account = account_of(file)
    account.admit(CENT)
    assert account.admit(CENT) == 0
    account.close()
    assert file.ledger.open


def test_an_object_is_written_often_at_first_and_then_every_ten_seconds() -> None:
    file, clock = File(), Clock()
    account = account_of(file, 1000.0, interval_seconds=10.0, first_requests=64, clock=clock)
    written = []
    for step in range(1200):  # a minute, at up to 500 requests per second
        clock.now = 100.0 + step / 20
        before = file.writes
        for _ in range(25):
            if account.admit(CENT // 100) == 0:
                account.add(CENT // 100)
                account.release(CENT // 100)
        if file.writes > before:
            written.append(round(clock.now - 100.0))
    assert len(written) <= 10
    assert all(later - earlier >= 9 for earlier, later in pairwise(written[5:]))
    sent = file.ledger.taken_nano_usd
    assert sent >= 25 * 1100 * (CENT // 100), "the blocks last, but for the first second"


def test_a_rest_is_returned_when_an_object_may_be_written_again_or_at_the_end() -> None:
    file, clock, later = File(), Clock(), list[tuple[float, Callable[[], None]]]()
    options: dict[str, Any] = {"interval_seconds": 10.0, "clock": clock}
    account = account_of(file, call_later=lambda *called: later.append(called), **options)
    assert send(account, CENT)
    account.close()
    ((seconds, close),) = later
    assert file.ledger.open
    clock.now += seconds
    close()
    assert (file.ledger.open, file.ledger.ended_nano_usd) == ({}, CENT)
    clock.now += 10
    assert send(account, CENT)
    account.close(is_end=True)
    assert (file.ledger.open, file.ledger.ended_nano_usd) == ({}, 2 * CENT)


def test_a_ledger_that_cannot_be_written_is_the_error_of_a_request_and_is_tried_again() -> None:
    file = File()
    file.fault = OSError("no disk")
    account = account_of(file)
    assert account.admit(CENT) > 0
    with pytest.raises(OSError, match="no disk"):
        account.admit(CENT)
    file.fault = None
    assert send(account, CENT)


def test_a_rest_that_cannot_be_returned_is_logged_and_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    file = File()
    account = account_of(file)
    assert send(account, CENT)
    file.fault = OSError("no disk")
    account.close()
    assert "stays taken: no disk" in caplog.text


def test_threads_share_an_account() -> None:
    file = File()
    account = Account(file.change, 1.0, over="x", name="a", interval_seconds=0.0, first_requests=4)
    sent = []

    def work() -> None:
        while send(account, CENT):
            sent.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sent) == 100


def test_many_batches_that_end_soon_after_a_write_return_their_rest_once() -> None:
    later: list[tuple[float, Callable[[], None]]] = []
    account = account_of(File(), interval_seconds=10.0, call_later=lambda *called: later.append(called))
    for _ in range(3):
        assert send(account, CENT // 10)
        account.close()
    assert len(later) == 1
