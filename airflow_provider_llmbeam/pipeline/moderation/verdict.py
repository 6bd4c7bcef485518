"""Verdicts of a guard model, what follows from them, and what they cost. Pure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from airflow_provider_llmbeam.engine.outcome import REFUSED, Completion, Failure, Outcome
from airflow_provider_llmbeam.spec.safety.moderation import Moderation, Side

#: Category of a text that the guard calls unsafe without saying what for, and of one without a readable verdict.
UNNAMED, UNREADABLE = "unsafe", "unreadable"

#: Schema of a verdict in JSON.
VERDICT_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"unsafe": {"type": "boolean"}, "categories": {"type": "array", "items": {"type": "string"}}},
    "required": ["unsafe", "categories"],
}
#: Number of categories that a column or a message has; all of them count.
_MAX_SHOWN = 20
_MAX_CHARACTERS = 100
#: Groups of the numbers of `usage_of`; those of verdicts are counted by row.
USAGE_GROUPS = frozenset({"requests", "tokens", "cost"})
#: From the mildest to the strictest.
_STRICTNESS = ("allow", "flag", "replace", "fail")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a guard says of a text.

    Attributes:
        is_unsafe: Whether it calls the text unsafe.
        categories: What for, as the guard names it.
    """

    is_unsafe: bool
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows for a row.

    Attributes:
        action: What is done with the row.
        category: Category for its column or its failure, several with commas between them; empty for a safe text.
        failure: Failure of the guard's request, if it gave no verdict: the row fails for the same reason.
    """

    action: Literal["allow", "flag", "replace", "fail"]
    category: str = ""
    failure: Failure | None = None


def read_verdict(answer: Completion, moderation: Moderation) -> Verdict | None:
    """Reads the answer of a guard; `None` if it is no verdict.

    Whatever it names besides its first word is a category, and a text with a category is unsafe: a verdict that
    contradicts itself, or is there twice, lets nothing pass.
    """
    if moderation.verdict == "shield_gemma":
        return _yes_or_no(answer, moderation.min_probability)
    if moderation.verdict == "json":
        names = [name for name, _ in json.loads(answer.text, object_pairs_hook=list)]
        if len(names) > len({*names}):
            return None
        word, named = "unsafe" if answer.parsed["unsafe"] else "safe", answer.parsed["categories"]
    else:
        word, *others = [line.strip() for line in answer.text.strip().splitlines() if line.strip()] or [""]
        named = [category for line in others for category in line.split(",")]
    if word.lower() not in ("safe", "unsafe"):
        return None
    categories = tuple(dict.fromkeys(name for name in map(_printable, named) if name))
    return Verdict(word.lower() == "unsafe" or bool(categories), categories)


def _yes_or_no(answer: Completion, min_probability: float | None) -> Verdict | None:
    """Reads the first word of ShieldGemma's answer, and with a bound its probability.

    Its model card (ai.google.dev/gemma/docs/shieldgemma/model_card) has the answer begin with `Yes` or `No`.
    """
    found = re.match(r"\W*(yes|no)\b", answer.text, re.IGNORECASE)
    if found is None:
        return None
    is_yes = found[1].lower() == "yes"
    if min_probability is None:
        return Verdict(is_yes)
    if answer.mean_logprob is None:
        return None
    of_word = math.exp(answer.mean_logprob)
    return Verdict((of_word if is_yes else 1 - of_word) >= min_probability)


def decide(outcome: Outcome, moderation: Moderation) -> Decision:
    """Decides what follows for a row from the outcome of the guard's request."""
    if isinstance(outcome, Failure) and outcome.kind not in REFUSED:
        return Decision("fail", failure=outcome)
    verdict = None if isinstance(outcome, Failure) else read_verdict(outcome, moderation)
    if verdict is None:
        return Decision(moderation.on_unreadable, UNREADABLE)
    if not verdict.is_unsafe:
        return Decision("allow")
    actions = [action for each in verdict.categories for action in _actions_of(each, moderation)]
    action = max(actions or [moderation.action], key=_STRICTNESS.index)
    return Decision(action, ",".join(verdict.categories[:_MAX_SHOWN]) or UNNAMED)


def refusal(decision: Decision, moderation: Moderation, what: str) -> Failure:
    """Returns the failure of a row by a decision, without the cost of its answer.

    Args:
        decision: The decision.
        moderation: The moderation.
        what: What was judged.
    """
    guard = f"the guard model {moderation.model.name!r}"
    if (failure := decision.failure) is not None:
        message = f"{guard} gave no verdict on the {what}: {failure.message}"
        return Failure(kind=failure.kind, message=message, http_status=failure.http_status)
    said = "gave no verdict that can be read on" if decision.category == UNREADABLE else "calls unsafe"
    return Failure(
        kind="moderated", message=f"{guard} {said} the {what}: {decision.category}", category=decision.category
    )


def usage_of(side: Side, outcome: Outcome) -> Counter[tuple[str, str, str]]:
    """Returns the numbers of one request that was made in this run, see `Tally.moderation`."""
    numbers = {
        ("requests", "texts"): 1,
        ("requests", "sent"): outcome.attempts + outcome.rejections + outcome.sheds,
        ("requests", "rejected"): outcome.rejections,
        ("requests", "retried"): max(0, outcome.attempts - 1),
        ("tokens", "input"): outcome.tokens.input,
        ("tokens", "output"): outcome.tokens.output,
        ("cost", "nano_usd"): outcome.cost_nano_usd or 0,
        ("cost", "unpriced"): int(outcome.cost_nano_usd is None),
    }
    return Counter({(side, *names): number for names, number in numbers.items()})


def _actions_of(category: str, moderation: Moderation) -> list[Literal["allow", "flag", "replace", "fail"]]:
    """Returns the actions of the categories in the spec that have this name once they are printable, too."""
    found = [action for name, action in moderation.categories.items() if _printable(name) == category]
    return [*found] or [moderation.action]


def _printable(category: str) -> str:
    """Returns a category as a short name without signs."""
    return re.sub(r"[\W]+", " ", category[:_MAX_CHARACTERS]).strip()
