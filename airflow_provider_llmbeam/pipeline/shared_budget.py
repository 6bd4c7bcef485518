"""The ledger of a job's budget that many runs share: its file, and what a job takes of it."""

from __future__ import annotations

import atexit
import logging
import uuid
from collections.abc import Callable
from functools import partial

from airflow_provider_llmbeam.engine.pacing.account import Account
from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.limits import OVER_RUNS
from airflow_provider_llmbeam.spec.protocol.counts import NANO, usd

_log = logging.getLogger(__name__)

#: Time between two writes of a process on Cloud Storage, for each worker of its job, in seconds: an object takes
#: one write per second. Source: docs.cloud.google.com/storage/quotas (2026-11).
_OBJECT_SECONDS = 10.0


def check_budget(spec: JobSpec) -> None:
    """Refuses a budget that cannot be used, and logs what is left of it.

    Raises:
        JobSpecError: It belongs to runs of a Dag, and this is none.
        JobFailedError: The ledger cannot be read.
    """
    budget = spec.limits.budget
    if budget is None or (left := left_usd(spec)) is None:
        return
    if budget.over in OVER_RUNS:
        raise JobSpecError(
            f"`limits.budget.over`: {budget.over!r} are runs of a Dag, and this is none. Expected a name here, "
            "which is that of the budget, e.g. 'tickets-2026-11'."
        )
    _log.info("%s of the budget %r are left (%s).", usd(left), budget.over, spec.paths.budget_uri)


def open_account(spec: JobSpec) -> Account | None:
    """Opens the account of this process, which returns what it did not spend; `None` without a budget."""
    budget, uri = spec.limits.budget, spec.paths.budget_uri
    if budget is None or uri is None:
        return None
    is_local = storage.is_local(uri)
    account = Account(
        partial(storage.change, uri),
        budget.usd,
        over=budget.over,
        uri=uri,
        name=f"{spec.name}.{uuid.uuid4().hex[:8]}",
        interval_seconds=0.0 if is_local else max(_OBJECT_SECONDS, float(spec.limits.expected_workers or 1)),
        first_requests=spec.limits.max_in_flight,
    )
    atexit.register(account.close)
    return account


def left_usd(spec: JobSpec) -> float | None:
    """Returns what is left of the budget, in US dollars; `None` without one."""
    budget, uri = spec.limits.budget, spec.paths.budget_uri
    if budget is None or uri is None:
        return None
    return Ledger.read(storage.read_if_exists(uri), budget.usd, uri).left_nano_usd / NANO


def reserve_batch(spec: JobSpec, cost_usd: float) -> None:
    """Reserves what batch inference may cost; a retry finds the reservation.

    Raises:
        BudgetExceededError: It is more than is left.
    """
    cost, name = round(cost_usd * NANO), _batch_name(spec)
    ledger = _change(spec, lambda ledger: ledger.take(name, cost, cost))
    if ledger is not None and ledger.open.get(name, 0) < cost:
        assert spec.limits.budget is not None
        raise BudgetExceededError(
            f"Batch inference costs about {usd(cost_usd)}, and of the {usd(spec.limits.budget.usd)} of "
            f"`limits.budget` {spec.limits.budget.over!r}, which other runs spend, too, "
            f"{usd(ledger.left_nano_usd / NANO)} are left. No job was submitted. Raise the budget, or leave rows "
            "out."
        )


def settle_batch(spec: JobSpec, cost_usd: float) -> None:
    """Replaces the reservation of batch inference, if there is one, with what it has cost."""
    name = _batch_name(spec)
    _change(spec, lambda ledger: ledger.close(name, round(cost_usd * NANO)))


def _batch_name(spec: JobSpec) -> str:
    return f"{spec.name}.batch"


def _change(spec: JobSpec, changed: Callable[[Ledger], Ledger]) -> Ledger | None:
    budget, uri, ledger = spec.limits.budget, spec.paths.budget_uri, None
    if budget is None or uri is None:
        return None

    def rewritten(content: bytes | None) -> bytes:
        nonlocal ledger
        ledger = changed(Ledger.read(content, budget.usd, uri))
        return ledger.content()

    storage.change(uri, rewritten)
    return ledger
