"""What a report says of a distilled stage: how it compares with `model` on the draws that were held back. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.pipeline.cascade.distilled.counts import (
    DistilledClass,
    DistilledConfusion,
    DistilledCounts,
    DistilledExample,
)
from airflow_provider_llmbeam.pipeline.cascade.distilled.curve import LearningPoint

#: Number of examples of each kind, and of characters of their prompts.
_EXAMPLES, _CHARACTERS = 10, 300


@dataclass(frozen=True)
class Compared:
    """A test draw that both have answered.

    Attributes:
        text: Prompt for `model`, masked if the job masks rows.
        expected: Answer of `model`.
        answer: Answer of the stage.
        labels: Classes of both; `None` for a job without classes.
        score: Score of the stage.
        agrees: Whether both agree.
        is_kept: Whether the stage may keep it.
    """

    text: str
    expected: Any
    answer: Any
    labels: tuple[str | None, str | None]
    score: float
    agrees: bool
    is_kept: bool


def describe(uri: str, curve: Sequence[LearningPoint], compared: Sequence[Compared]) -> DistilledCounts:
    """Returns the part of a report on a distilled stage.

    Args:
        uri: Address of the fit.
        curve: Its learning curve.
        compared: The test draws.
    """
    of_classes = [each for each in compared if None not in each.labels]
    confusion = Counter((str(each.labels[0]), str(each.labels[1])) for each in of_classes)
    drawn = Counter(str(each.labels[1]) for each in of_classes)
    kept = Counter(str(each.labels[1]) for each in of_classes if each.is_kept)
    # A prompt that was drawn several times is one example.
    wrong = {each.text: each for each in compared if not each.agrees}
    ordered = sorted(wrong.values(), key=lambda each: each.score)
    return DistilledCounts(
        fit_uri=uri,
        learning_curve=[*curve],
        confusion=[
            DistilledConfusion(expected=expected, answer=answer, draws=draws)
            for (expected, answer), draws in sorted(confusion.items())
        ],
        classes=[DistilledClass(label=label, draws=drawn[label], kept=kept[label]) for label in sorted(drawn)],
        uncertain=[_example(each) for each in ordered[:_EXAMPLES]],
        confident=[_example(each) for each in ordered[::-1][:_EXAMPLES]],
    )


def _example(compared: Compared) -> DistilledExample:
    def shown(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return DistilledExample(
        text=compared.text[:_CHARACTERS],
        expected=shown(compared.expected),
        answer=shown(compared.answer),
        score=round(compared.score, 4),
    )
