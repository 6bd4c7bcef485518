from __future__ import annotations

import hashlib
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.reporting.samples import (
    ANSWERS,
    MAX_ANSWER_CHARACTERS,
    MAX_MESSAGE_CHARACTERS,
    MAX_ROW_CHARACTERS,
    Samples,
    samples_of,
)
from tests.hostile import examples
from tests.outcomes import completion


def answered(number: int, answer: str = "Hi.", **row: Any) -> AnsweredRow:
    fingerprint = hashlib.sha256(str(number).encode()).hexdigest()
    return AnsweredRow({"id": number, **row}, fingerprint, completion(answer), "fresh")


def failed(number: int, kind: Any = "timeout", message: str = "slow", **row: Any) -> FailedRow:
    return FailedRow({"id": number, **row}, Failure(kind=kind, message=message, attempts=3))


rows = st.lists(
    st.builds(answered, st.integers(0, 30))
    | st.builds(failed, st.integers(0, 30), st.sampled_from(["timeout", "blocked"])),
    max_size=30,
)


def samples(found: list[Any]) -> Samples:
    made = Samples()
    for row in found:
        if isinstance(row, FailedRow):
            made.add_failure(row, ("id",))
        elif row.fingerprint < made.highest:
            made.add_answer(row)
    return made


def merged(*parts: Samples) -> Samples:
    total = Samples()
    for part in parts:
        total.merge(part)
    return total


@given(rows, rows, rows)
@examples(1)
def test_the_choice_is_independent_of_where_and_in_which_order_rows_are_offered(
    a: list[Any], b: list[Any], c: list[Any]
) -> None:
    whole = samples([*a, *b, *c])
    assert merged(samples(a), samples(b), samples(c)) == whole
    assert merged(samples(c), merged(samples(b), samples(a))) == whole


def test_three_failed_rows_of_each_kind_and_five_answers_are_kept() -> None:
    found = samples([*map(answered, range(100)), *map(failed, range(100)), failed(1, "blocked")])
    shown = samples_of(found, str)
    assert len(shown.answers) == ANSWERS
    assert {kind: len(rows) for kind, rows in shown.failed.items()} == {"timeout": 3, "blocked": 1}
    assert [*shown.failed] == ["blocked", "timeout"], "in the order of the kinds"


def test_the_answers_are_not_the_first_ones() -> None:
    numbers = [*range(1000)]
    random.Random(1).shuffle(numbers)
    shown = samples_of(samples([*map(answered, numbers)]), str)
    assert shown == samples_of(samples([*map(answered, range(1000))]), str)
    assert not all(any(f'"id":{number}}}' in row.row for row in shown.answers) for number in range(5))


def test_texts_are_cut_and_say_so() -> None:
    found = samples([answered(1, "a" * 10**6, text="b" * 10**6), failed(2, message="c" * 10**6, text="d" * 10**6)])
    shown = samples_of(found, str)
    (answer,), (failure,) = shown.answers, shown.failed["timeout"]
    assert answer.answer == "a" * MAX_ANSWER_CHARACTERS + "…"
    assert answer.characters == 10**6
    assert failure.message == "c" * MAX_MESSAGE_CHARACTERS + "…"
    assert len(answer.row) == len(failure.row) == MAX_ROW_CHARACTERS + 1
    assert samples_of(samples([answered(1, "a" * MAX_ANSWER_CHARACTERS)]), str).answers[0].answer.endswith("a")


def test_rows_without_a_key_are_told_apart() -> None:
    unreadable = [
        FailedRow({"llmbeam_raw": f"line {number}"}, Failure(kind="unreadable_row", message="no"))
        for number in range(9)
    ]
    assert len(samples(unreadable).failed["unreadable_row"]) == 3


def test_half_of_a_surrogate_pair_can_be_written() -> None:
    shown = samples_of(samples([answered(1, "cut \ud83d"), failed(2, message="cut \ud83d", text="\ud83d")]), str)
    shown.model_dump_json()
    assert shown.answers[0].answer == "cut �"
