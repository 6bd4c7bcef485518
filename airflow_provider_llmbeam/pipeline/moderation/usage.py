"""What the requests to a guard have cost, as the report counts it."""

from __future__ import annotations

from collections import Counter

from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.spec.safety.moderation import Side

#: Groups of the numbers of `usage_of`; those of verdicts are counted by row.
USAGE_GROUPS = frozenset({"requests", "tokens", "cost"})


def usage_of(side: Side, outcome: Outcome) -> Counter[tuple[str, str, str]]:
    """Returns the numbers of one request that was made in this run, see `Tally.moderation`."""
    numbers = {
        ("requests", "texts"): 1,
        ("requests", "sent"): outcome.attempts + outcome.rejections + outcome.sheds,
        ("requests", "rejected"): outcome.rejections,
        ("requests", "retried"): max(0, outcome.attempts - 1),
        ("tokens", "input"): outcome.input_tokens,
        ("tokens", "output"): outcome.output_tokens,
        ("cost", "nano_usd"): outcome.cost_nano_usd or 0,
        ("cost", "unpriced"): int(outcome.cost_nano_usd is None),
    }
    return Counter({(side, *names): number for names, number in numbers.items()})
