"""How much of its money a process has spent."""

from __future__ import annotations

from airflow_provider_llmbeam.exceptions import BudgetExceededError
from airflow_provider_llmbeam.spec.model.price import Price


class Budget:
    """Counts the tokens that this process was billed for, and knows when they have cost too much.

    Tokens count when the server's reply says them; a request that timed out says none. What is under way when the
    budget is spent is still paid for, so a process spends at most its budget and what `limits.max_in_flight`
    requests cost. Another process counts its own: on Dataflow, where the counters of all workers can be watched
    from outside, this is the backstop.

    Args:
        budget_usd: What may be spent.
        price: Of a token.
    """

    def __init__(self, budget_usd: float, price: Price) -> None:
        self._budget_usd = budget_usd
        self._price = price
        self._input_tokens = 0
        self._output_tokens = 0

    def add(self, input_tokens: int, output_tokens: int) -> None:
        """Counts what one reply was billed, an answer or not."""
        self._input_tokens += input_tokens
        self._output_tokens += output_tokens

    @property
    def spent_usd(self) -> float:
        """The cost so far."""
        return self._price.cost_usd(self._input_tokens, self._output_tokens)

    @property
    def is_spent(self) -> bool:
        """Whether it has cost more than it may."""
        return self.spent_usd > self._budget_usd

    def error(self) -> BudgetExceededError:
        """Says where it stands."""
        return BudgetExceededError(
            f"This process has spent ${self.spent_usd:,.6g} on {self._input_tokens:,} input and "
            f"{self._output_tokens:,} output tokens, and `limits.budget_usd` is ${self._budget_usd:,.6g}. What "
            "was under way was awaited, and this process sends and bills nothing more. The answers so far are in "
            "the journal, and the previous output was kept: clear the task, or run the job again, to go on from "
            "there with a budget of its own."
        )
