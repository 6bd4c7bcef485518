"""What a guard is asked about an answer."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.pipeline.elements import AnsweredRow
from airflow_provider_llmbeam.pipeline.moderation.feature import with_published_text
from tests.outcomes import completion


@pytest.mark.parametrize(
    ("keeps", "reasoning", "text", "parsed", "judged"),
    [
        (False, "How to harm", "fine", None, "fine"),
        (True, "How to harm", "fine", None, "How to harm\n\nfine"),
        (True, None, "fine", None, "fine"),
        (True, None, r'{"a": "\u0068arm"}', {"a": "harm"}, '{"a": "harm"}'),
        (True, None, '"\\u00e4"', "ä", '"ä"'),
    ],
)
def test_a_guard_judges_all_that_is_published(
    keeps: bool, reasoning: str | None, text: str, parsed: Any, judged: str
) -> None:
    answer = completion(text, parsed=parsed, reasoning=reasoning)
    answered = AnsweredRow({"id": 1}, "f", answer, "fresh")
    assert with_published_text(answered, keeps) == (judged, answered)
