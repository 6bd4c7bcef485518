"""Mistakes in `conversation`."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake


def _changes(**conversation: object) -> dict[str, object]:
    return {"state_uri": "state", "conversation": {"key": "id", **conversation}}


MISTAKES = (
    Mistake(
        changes={"conversation": {"key": "id"}},
        sentence=(
            "`state_uri`: this field is needed with `conversation`: the history of each key is kept there between "
            "runs; got None. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={**_changes(), "inference": {"mode": "batch"}},
        sentence=(
            "`inference.mode`: must be 'online' with `conversation`: a turn is sent with the answer before it, "
            "and batch inference answers after hours; got 'batch'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={**_changes(), "task": "embed", "model.name": "gemini-embedding-001"},
        sentence=(
            "`task`: must be 'generate' with `conversation`: a vector answers nobody; got 'embed'. Nothing was "
            "sent or billed."
        ),
    ),
    Mistake(
        changes={
            **_changes(),
            "safety": {"moderation": {"model": {"type": "openai", "name": "llama-guard-3"}}},
        },
        sentence=(
            "`safety.moderation.on`: must be ['input'] with `conversation`: an answer is part of the next request "
            "before a guard has judged it; got ['input', 'output']. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={**_changes(), "source.share": [0, 0.05]},
        sentence=(
            "`source.share`: must be left out with `conversation`: it divides rows, and so the turns of one "
            "conversation; got [0.0, 0.05]. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={**_changes(), "source.on_duplicate_key": "allow"},
        sentence=(
            "`source.on_duplicate_key`: must not be 'allow' with `conversation`: the key of a row names "
            "its turn; got 'allow'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(order_by="txt"),
        sentence=(
            "100 of 100 rows are no turns: correct `conversation` or the rows. `order_by`: no value in column "
            "'txt'; the row has ['id', 'text']. The rows are in 'state/moods/failed_rows.jsonl'; the old "
            "output stays. Nothing was sent or billed."
        ),
        found="start",
    ),
)
