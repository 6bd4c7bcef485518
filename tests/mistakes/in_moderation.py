"""Mistakes in `safety.moderation`."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_GUARD = {"model": {"type": "openai", "name": "llama-guard-3"}}


def _changes(**moderation: object) -> dict[str, object]:
    return {"safety": {"moderation": _GUARD | moderation}}


MISTAKES = (
    Mistake(
        changes={"safety": {"moderation": {}}},
        sentence="`safety.moderation.model`: this field is needed. Nothing was sent or billed.",
    ),
    Mistake(
        changes=_changes(template="Is this safe?"),
        sentence=(
            "`safety.moderation.template`: must show the guard what it judges: it lacks '{text}'; got 'Is this "
            "safe?'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(action="replace"),
        sentence=(
            "`safety.moderation.replacement`: this field is needed with the action 'replace'. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes=_changes(verdict="json"),
        sentence=(
            "`safety.moderation.system`: this field, or a longer `template`, is needed to tell the guard what is "
            "unsafe. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(verdict="shield_gemma", system="No hate speech.", min_probability=0.5),
        sentence=(
            "`safety.moderation.generation`: must have `logprobs` and `max_output_tokens` 1 with "
            "`min_probability`, that of one token. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(min_probability=0.5),
        sentence=(
            "`safety.moderation.min_probability`: needs the `verdict` 'shield_gemma'; got 0.5. Nothing was sent "
            "or billed."
        ),
    ),
    Mistake(
        changes=_changes(limits={"budget_usd": 5}),
        sentence=(
            "`safety.moderation.limits.price`: this field is needed with `budget_usd`, as the price of openai "
            "model 'llama-guard-3' is not known. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={**_changes(), "task": "embed", "model.name": "gemini-embedding-001"},
        sentence=(
            "`safety.moderation.on`: must be ['input'] to embed: a vector is no text; got ['input', 'output']. "
            "Nothing was sent or billed."
        ),
    ),
)
