"""Mistakes in the selection of answers that people review."""

from __future__ import annotations

from typing import Any

from tests.mistakes.in_evaluation import MOOD
from tests.mistakes.mistake import Mistake


def mistake(sentence: str, *, schema: Any = MOOD, **changes: Any) -> Mistake:
    return Mistake(
        found="review",
        sentence=f"{sentence} Nothing was sent or billed.",
        changes={"prompt.output_schema": schema},
        **changes,
    )


MISTAKES = (
    mistake("`rows`: must be less than or equal to 500; got 1000.", sample={"rows": 1000}),
    mistake(
        "`stratify_by`: the answers have no field 'label'; expected one of `mood`.",
        sample={"stratify_by": "label"},
    ),
    mistake("`fields`: the answers have no field 'moods'; did you mean `mood`?", sample={"fields": ["moods"]}),
    mistake("`columns`: no row has the column 'review'.", sample={"columns": ["id", "review"]}),
    mistake(
        "`review_uri`: must end in .jsonl: its rows are written as JSON lines; got 'review.csv'.",
        sample={"review_uri": "review.csv"},
    ),
    mistake(
        (
            "The journal 'out/.llmbeam/moods/journal@loopback/' has no answer to these rows. Give this task the "
            "arguments of the run whose answers are reviewed, and its manifest."
        ),
        about="a run with another prompt",
    ),
)
