"""The ledger of a job's budget that many runs share: its file, and what a job takes of it."""

from __future__ import annotations

import atexit
import logging
import math
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Self

from airflow_provider_llmbeam.engine.pacing.account import Account
from airflow_provider_llmbeam.engine.pacing.budget import Budget
from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.identity import job_identity
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.limits import OVER_RUNS, OVER_WINDOWS, SharedBudget
from airflow_provider_llmbeam.spec.protocol.counts import NANO, usd

_log = logging.getLogger(__name__)

#: Time between two writes of a process on Cloud Storage, for each worker of its job, in seconds: an object takes
#: one write per second. Source: docs.cloud.google.com/storage/quotas (2026-11).
_OBJECT_SECONDS = 10.0


class LedgerFile:
    """The file of a ledger.

    Args:
        budget: The budget, as this run has it.
        uri: Address of the file.
    """

    def __init__(self, budget: SharedBudget, uri: str) -> None:
        self.budget, self.uri = budget, uri

    @classmethod
    def of(cls, spec: JobSpec) -> Self | None:
        """Returns the file of a job; `None` without a budget that runs share."""
        budget, uri = spec.limits.budget, spec.paths.budget_uri
        return None if budget is None or uri is None else cls(budget, uri)

    def read(self) -> Ledger:
        """Reads the ledger.

        Raises:
            JobFailedError: It cannot be read.
        """
        return self._decode(storage.read_if_exists(self.uri))

    def change(self, changed: Callable[[Ledger], Ledger]) -> Ledger:
        """Changes the ledger, and returns the new one; see `storage.change`."""
        ledger: Ledger | None = None

        def rewritten(content: bytes | None) -> bytes:
            nonlocal ledger
            ledger = changed(self._decode(content))
            return ledger.content()

        storage.change(self.uri, rewritten)
        assert ledger is not None
        return ledger

    def _decode(self, content: bytes | None) -> Ledger:
        return Ledger.read(content, self.budget.usd, self.uri)


def check_budget(spec: JobSpec) -> None:
    """Refuses a budget that cannot be used, and logs what is left of it.

    Raises:
        JobSpecError: It belongs to runs of a Dag, and this is none, or to a stream.
        JobFailedError: The ledger cannot be read.
    """
    if (file := LedgerFile.of(spec)) is None:
        return
    if file.budget.over in OVER_WINDOWS:
        raise JobSpecError(
            f"`limits.budget.over`: {file.budget.over!r} is of a stream, which waits for the next one. Expected "
            "'month', 'dag', 'backfill' or a name."
        )
    if file.budget.over in OVER_RUNS:
        raise JobSpecError(
            f"`limits.budget.over`: {file.budget.over!r} are runs of a Dag, and this is none. Expected a name "
            "here, which is that of the budget, e.g. 'tickets-2026-11'."
        )
    left = usd(file.read().left_nano_usd / NANO)
    _log.info("%s of the budget %r are left (%s).", left, file.budget.over, file.uri)


def open_account(spec: JobSpec) -> Account | None:
    """Opens the account of this process, which returns what it did not spend; `None` without a budget."""
    if (file := LedgerFile.of(spec)) is None:
        return None
    is_local = storage.is_local(file.uri)
    account = Account(
        file.change,
        file.budget.usd,
        over=file.budget.over,
        name=f"{spec.name}.{uuid.uuid4().hex[:8]}",
        interval_seconds=0.0 if is_local else max(_OBJECT_SECONDS, float(spec.limits.expected_workers or 1)),
        first_requests=spec.limits.max_in_flight,
    )
    atexit.register(account.close, is_end=True)
    return account


def name_window(spec: JobSpec, now: float) -> JobSpec:
    """Returns a job whose budget, if it begins anew each hour or day, has the name of the window of a time."""
    budget = spec.limits.budget
    if budget is None or (begun := budget.begins_at(now)) is None:
        return spec
    name = f"{budget.over}-{job_identity(spec)}-{datetime.fromtimestamp(begun, UTC):%Y-%m-%dT%H%M%SZ}"
    limits = spec.limits.model_copy(update={"budget": budget.model_copy(update={"over": name})})
    return spec.model_copy(update={"limits": limits})


def open_budget(spec: JobSpec) -> Budget:
    """Opens the budget of this process."""
    budget = spec.limits.budget
    if budget is not None and budget.over in OVER_WINDOWS:
        return RenewedBudget(spec)
    return Budget(spec.limits.budget_usd or math.inf, open_account(spec))


class RenewedBudget(Budget):
    """A budget of each hour or day: each has its own ledger, and what one leaves is not of the next one.

    Args:
        spec: The job, with such a budget.
        clock: Returns the Unix time.
    """

    def __init__(self, spec: JobSpec, clock: Callable[[], float] = time.time) -> None:
        super().__init__(spec.limits.budget_usd or math.inf)
        assert spec.limits.budget is not None
        self._spec, self._budget, self._clock = spec, spec.limits.budget, clock
        self._begun: float | None = None

    @property
    def account(self) -> Account | None:
        """Account of this process at the ledger of the hour or day; what is in flight may end in the next one."""
        begun = self._budget.begins_at(now := self._clock())
        if begun != self._begun:
            if self._account is not None:
                atexit.unregister(self._account.close)
            self._begun, self._account = begun, open_account(name_window(self._spec, now))
        return self._account

    def error(self) -> BudgetExceededError:
        """Returns the error, with the time at which the budget begins anew; it may have, since it was spent."""
        is_spent, error = self.is_spent, super().error()
        if not self.is_of_run_spent:
            now = self._clock()
            error.renewed_at = now + (self._budget.seconds_to_next(now) or 0.0) if is_spent else now
        return error


def read_left_usd(spec: JobSpec) -> float | None:
    """Returns what is left of the budget, in US dollars; `None` without one."""
    return None if (file := LedgerFile.of(spec)) is None else file.read().left_nano_usd / NANO


def reserve_batch(spec: JobSpec, cost_usd: float) -> None:
    """Reserves what batch inference may cost; a retry finds the reservation.

    Raises:
        BudgetExceededError: It is more than is left.
    """
    if (file := LedgerFile.of(spec)) is None:
        return
    cost, name = round(cost_usd * NANO), _batch_name(spec)
    ledger = file.change(lambda ledger: ledger.take(name, cost, cost))
    if ledger.open.get(name, 0) < cost:
        raise BudgetExceededError(
            f"Batch inference costs about {usd(cost_usd)}, and of the {usd(file.budget.usd)} of "
            f"`limits.budget` {file.budget.over!r}, which other runs spend, too, "
            f"{usd(ledger.left_nano_usd / NANO)} are left. No job was submitted. Raise the budget, or leave rows "
            "out."
        )


def settle_batch(spec: JobSpec, cost_usd: float) -> None:
    """Replaces the reservation of batch inference, if there is one, with what it has cost."""
    if (file := LedgerFile.of(spec)) is not None:
        file.change(lambda ledger: ledger.close(_batch_name(spec), round(cost_usd * NANO)))


def _batch_name(spec: JobSpec) -> str:
    return f"{spec.name}.batch"
