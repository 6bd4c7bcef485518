"""The budget of a process."""

from __future__ import annotations

from airflow_provider_llmbeam.counts import NANO
from airflow_provider_llmbeam.engine.bill import NOTHING, Bill
from airflow_provider_llmbeam.exceptions import BudgetExceededError


class Budget:
    """Adds up what this process is billed for and compares its cost with the budget.

    Tokens are counted when a reply reports them; a request that timed out reports none. Requests in flight are
    still paid for when the budget is spent, so a process spends at most its budget plus the cost of
    `limits.max_in_flight` requests. Each process counts its own: on Dataflow, where the counters of all workers
    are monitored from outside, this is a second safeguard.

    Args:
        budget_usd: The budget, in US dollars.
    """

    def __init__(self, budget_usd: float) -> None:
        self._budget_usd = budget_usd
        self._bill = NOTHING

    def add(self, bill: Bill) -> None:
        """Adds the bill of one reply, valid or not."""
        self._bill = self._bill.plus(bill)

    @property
    def spent_usd(self) -> float:
        """Cost so far, in US dollars."""
        return (self._bill.cost_nano_usd or 0) / NANO

    @property
    def is_spent(self) -> bool:
        """Whether the cost exceeds the budget."""
        return self.spent_usd > self._budget_usd

    def error(self) -> BudgetExceededError:
        """Returns the error that reports the spent budget."""
        return BudgetExceededError(
            f"This process has spent ${self.spent_usd:,.6g} on {self._bill.input_tokens:,} input and "
            f"{self._bill.output_tokens:,} output tokens, and `limits.budget_usd` is ${self._budget_usd:,.6g}. "
            "Requests in flight were awaited, and this process sends and bills nothing more. The journal, if "
            "there is one, has the answers so far, and the previous output was kept: clear the task, or run the "
            "job again, to continue from there with a new budget."
        )
