from __future__ import annotations

import apache_beam as beam
import pytest

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, RenderedRow, Request
from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS
from airflow_provider_llmbeam.pipeline.transforms.reuse import REUSED, MakeRequest, Reuse

ROWS: list[RenderedRow] = [({"id": number}, "Hi", None, ()) for number in range(3)]


def reuse(rows, journal):
    step = Reuse("nightly")
    step.start_bundle()
    found = list(step.process(("f", {"rows": iter(rows), "journal": iter(journal)})))
    step.finish_bundle()
    return found


def test_equal_prompts_are_one_request() -> None:
    assert reuse(ROWS, []) == [Request("f", ({"id": 0}, {"id": 1}, {"id": 2}), Prompt("Hi"))]
    assert PROGRESS.snapshot().duplicates == 2


def test_rows_with_an_answer_in_the_journal_are_not_sent(completion) -> None:
    answer = completion()
    found = reuse(ROWS[:2], [("nightly", answer)])
    assert all(isinstance(output, beam.pvalue.TaggedOutput) and output.tag == REUSED for output in found)
    assert [output.value for output in found] == [AnsweredRow({"id": n}, "f", answer, "resumed") for n in (0, 1)]
    assert PROGRESS.snapshot().resumed == 2


def test_an_answer_recorded_twice_is_used_once(completion) -> None:
    assert len(reuse(ROWS[:1], [("nightly", completion())] * 2)) == 1


def test_an_answer_without_a_row_is_ignored(completion) -> None:
    assert reuse([], [("nightly", completion())]) == reuse([], []) == []


def test_without_a_journal_equal_prompts_are_one_request() -> None:
    assert list(MakeRequest().process(("f", iter(ROWS)))) == [
        Request("f", ({"id": 0}, {"id": 1}, {"id": 2}), Prompt("Hi"))
    ]


def test_an_answer_of_another_job_is_cached_and_the_newest_one_is_taken(completion) -> None:
    old, new = completion(answered_at=1.0), completion(answered_at=2.0)
    (output,) = reuse(ROWS[:1], [("monday", old), ("tuesday", new), ("sunday", old)])
    assert (output.value.origin, output.value.completion) == ("cached", new)


def test_an_answer_of_this_job_takes_precedence_over_a_newer_one_of_another_job(completion) -> None:
    own = completion(answered_at=1.0)
    (output,) = reuse(ROWS[:1], [("nightly", own), ("tuesday", completion(answered_at=2.0))])
    assert (output.value.origin, output.value.completion) == ("resumed", own)


@pytest.mark.parametrize("journal", [[], ["answered"]])
def test_duplicate_keys_end_the_job_before_a_request(completion, journal) -> None:
    group = ("f", {"rows": iter(ROWS), "journal": iter([("nightly", completion()) for _ in journal])})
    with pytest.raises(JobSpecError, match="Nothing was sent or billed"):
        list(Reuse("nightly").process(group, [b'{"id": 1}']))
