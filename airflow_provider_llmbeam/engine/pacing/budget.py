"""The budget of a process: that of its run, and one that many runs share."""

from __future__ import annotations

import math

from airflow_provider_llmbeam.engine.bill import Bill, charged_nano_usd
from airflow_provider_llmbeam.engine.pacing.account import Account
from airflow_provider_llmbeam.exceptions import BudgetExceededError
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.protocol.counts import NANO


class Budget:
    """Adds up what this process is billed for and compares its cost with the budget.

    Tokens are counted when a reply reports them; a request that timed out reports none. Requests in flight are
    still paid for when the budget is spent, so a process spends at most its budget plus the cost of
    `limits.max_in_flight` requests. Each process counts its own: on Dataflow, where the counters of all workers
    are monitored from outside, this is a second safeguard. What runs share is reserved before it is sent, see
    `Account`.

    Args:
        budget_usd: The budget of the run, in US dollars.
        account: Account of this process at the ledger of a budget that many runs share; `None` for none.
    """

    def __init__(self, budget_usd: float = math.inf, account: Account | None = None) -> None:
        self._budget_usd = budget_usd
        self._account = account
        self._input_tokens = 0
        self._output_tokens = 0
        self._spent_nano_usd = 0

    @property
    def account(self) -> Account | None:
        """Account of this process at the ledger; `None` for none."""
        return self._account

    def add(self, bill: Bill, price: Price | None = None) -> None:
        """Adds the bill of one reply, valid or not.

        Args:
            bill: The bill.
            price: Price of the tokens, for a bill of a tier whose price is not known.
        """
        self._input_tokens += bill.tokens.input
        self._output_tokens += bill.tokens.output
        charged = charged_nano_usd(bill, price)
        self._spent_nano_usd += charged
        if self.account is not None:
            self.account.add(charged)

    @property
    def spent_usd(self) -> float:
        """Cost so far, in US dollars."""
        return self._spent_nano_usd / NANO

    @property
    def is_spent(self) -> bool:
        """Whether the cost exceeds the budget, or nothing is left of the shared one."""
        return self.is_of_run_spent or (self.account is not None and self.account.is_spent)

    @property
    def is_of_run_spent(self) -> bool:
        """Whether the cost exceeds the budget of the run."""
        return self.spent_usd > self._budget_usd

    def error(self) -> BudgetExceededError:
        """Returns the error that reports the spent budget."""
        allowed, further = f"`limits.budget_usd` is ${self._budget_usd:,.6g}", "with a new budget"
        if self.account is not None and self.account.is_spent:
            allowed, further = self.account.refusal, "once `usd` is higher, or `over` names another budget"
        return BudgetExceededError(
            f"This process has spent ${self.spent_usd:,.6g} on {self._input_tokens:,} input and "
            f"{self._output_tokens:,} output tokens, and {allowed}. "
            "Requests in flight were awaited, and this process sends and bills nothing more. The journal, if "
            "there is one, has the answers so far, and the previous output was kept: clear the task, or run the "
            f"job again, to continue from there {further}."
        )
