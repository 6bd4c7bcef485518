from __future__ import annotations

import apache_beam as beam

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, RenderedRow, Request
from airflow_provider_llmbeam.pipeline.progress import PROGRESS
from airflow_provider_llmbeam.pipeline.reuse import RESUMED, AskOnce, Reuse

ROWS: list[RenderedRow] = [({"id": number}, "Hi", None, ()) for number in range(3)]


def reuse(rows, journal):
    return list(Reuse().process(("f", {"rows": iter(rows), "journal": iter(journal)})))


def test_equal_prompts_are_one_request() -> None:
    assert reuse(ROWS, []) == [Request("f", ({"id": 0}, {"id": 1}, {"id": 2}), Prompt("Hi"))]
    assert PROGRESS.snapshot().duplicates == 2


def test_rows_that_the_journal_answers_are_not_asked(completion) -> None:
    answer = completion()
    found = reuse(ROWS[:2], [answer])
    assert all(isinstance(output, beam.pvalue.TaggedOutput) and output.tag == RESUMED for output in found)
    assert [output.value for output in found] == [AnsweredRow({"id": n}, "f", answer, "resumed") for n in (0, 1)]
    assert PROGRESS.snapshot().resumed == 2


def test_an_answer_that_was_written_down_twice_is_used_once(completion) -> None:
    assert len(reuse(ROWS[:1], [completion(), completion()])) == 1


def test_an_answer_that_nobody_asks_for_any_more_is_left_alone(completion) -> None:
    assert reuse([], [completion()]) == reuse([], []) == []


def test_without_a_journal_equal_prompts_are_one_request() -> None:
    assert list(AskOnce().process(("f", iter(ROWS)))) == [
        Request("f", ({"id": 0}, {"id": 1}, {"id": 2}), Prompt("Hi"))
    ]
