"""The budget of a process."""

from __future__ import annotations

from airflow_provider_llmbeam.exceptions import BudgetExceededError
from airflow_provider_llmbeam.spec.model.price import Price


class Budget:
    """Counts the billed tokens of this process and compares their cost with the budget.

    Tokens are counted when a reply reports them; a request that timed out reports none. Requests in flight are
    still paid for when the budget is spent, so a process spends at most its budget plus the cost of
    `limits.max_in_flight` requests. Each process counts its own: on Dataflow, where the counters of all workers
    are monitored from outside, this is a second safeguard.

    Args:
        budget_usd: The budget, in US dollars.
        price: Price of the tokens.
    """

    def __init__(self, budget_usd: float, price: Price) -> None:
        self._budget_usd = budget_usd
        self._price = price
        self._input_tokens = 0
        self._output_tokens = 0

    def add(self, input_tokens: int, output_tokens: int) -> None:
        """Adds the billed tokens of one reply, valid or not."""
        self._input_tokens += input_tokens
        self._output_tokens += output_tokens

    @property
    def spent_usd(self) -> float:
        """Cost so far, in US dollars."""
        return self._price.cost_usd(self._input_tokens, self._output_tokens)

    @property
    def is_spent(self) -> bool:
        """Whether the cost exceeds the budget."""
        return self.spent_usd > self._budget_usd

    def error(self) -> BudgetExceededError:
        """Returns the error that reports the spent budget."""
        return BudgetExceededError(
            f"This process has spent ${self.spent_usd:,.6g} on {self._input_tokens:,} input and "
            f"{self._output_tokens:,} output tokens, and `limits.budget_usd` is ${self._budget_usd:,.6g}. "
            "Requests in flight were awaited, and this process sends and bills nothing more. The answers so far "
            "are in the journal, and the previous output was kept: clear the task, or run the job again, to "
            "continue from there with a new budget."
        )
