"""The part of the report on the guard model."""

from __future__ import annotations

from collections import Counter

from airflow_provider_llmbeam.pipeline.reporting.answer_profile import most_frequent
from airflow_provider_llmbeam.pipeline.reporting.parts import MAX_CATEGORIES, Part
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from airflow_provider_llmbeam.spec.safety.moderation import Moderation, Side


class JudgedSide(Part):
    """What the guard judged on one side: the prompts, or the answers.

    Attributes:
        texts: Distinct texts of which it was asked in this run; the verdicts on others are in the journal.
        safe: Rows whose text it calls safe.
        unsafe: Rows whose text it calls unsafe.
        unreadable: Rows on whose text its answer is no verdict.
        unjudged: Rows that failed as its server gave no answer; a retry asks for them again.
        actions: Rows by what followed from an unsafe or unreadable verdict: `fail`, `flag`, `replace` or `allow`.
        categories: Rows by category; a row of several counts in each.
    """

    texts: int
    safe: int
    unsafe: int
    unreadable: int
    unjudged: int
    actions: dict[str, int]
    categories: dict[str, int]


class ModerationCounts(Part):
    """The requests of the guard in this run, which are not among those of the job, and its verdicts.

    Attributes:
        model: The guard model.
        requests_sent: Its requests.
        requests_rejected: Those that received a 429.
        requests_retried: Those after an error.
        input_tokens: Billed input tokens.
        output_tokens: Billed output tokens.
        cost_usd: Cost of these tokens, in US dollars; `None` if no price is known.
        input: Verdicts on prompts; `None` if it judges none.
        output: Verdicts on answers; `None` if it judges none.
    """

    model: str
    requests_sent: int
    requests_rejected: int
    requests_retried: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    input: JudgedSide | None
    output: JudgedSide | None


def moderation_of(
    moderation: Moderation | None, numbers: Counter[tuple[str, str, str]]
) -> ModerationCounts | None:
    """Returns the part on the guard; `None` for a job without one."""
    if moderation is None:
        return None

    def total(group: str, name: str) -> int:
        return numbers["input", group, name] + numbers["output", group, name]

    return ModerationCounts(
        model=f"{moderation.model.type}:{moderation.model.name}",
        requests_sent=total("requests", "sent"),
        requests_rejected=total("requests", "rejected"),
        requests_retried=total("requests", "retried"),
        input_tokens=total("tokens", "input"),
        output_tokens=total("tokens", "output"),
        cost_usd=None if total("cost", "unpriced") else round(total("cost", "nano_usd") / NANO, 6),
        input=_side("input", numbers) if "input" in moderation.on else None,
        output=_side("output", numbers) if "output" in moderation.on else None,
    )


def unsent_prompts(numbers: Counter[tuple[str, str, str]]) -> int:
    """Returns the number of failed rows whose prompts were not sent, as the guard did not let them pass."""
    return numbers["input", "actions", "fail"] + numbers["input", "rows", "unjudged"]


def _side(side: Side, numbers: Counter[tuple[str, str, str]]) -> JudgedSide:
    def of(group: str) -> dict[str, int]:
        return {name: number for (at, kind, name), number in numbers.items() if (at, kind) == (side, group)}

    rows = of("rows")
    return JudgedSide(
        texts=numbers[side, "requests", "texts"],
        safe=rows.get("safe", 0),
        unsafe=rows.get("unsafe", 0),
        unreadable=rows.get("unreadable", 0),
        unjudged=rows.get("unjudged", 0),
        actions=dict(sorted(of("actions").items())),
        categories=most_frequent(of("categories"), MAX_CATEGORIES),
    )
