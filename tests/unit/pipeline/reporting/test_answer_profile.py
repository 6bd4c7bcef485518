from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from airflow_provider_llmbeam.pipeline.reporting.answer_profile import (
    MAX_FIELDS,
    MAX_MODELS,
    OTHERS,
    AnswerProfile,
    class_start,
    label_fields,
    length_class,
)
from tests.hostile import examples
from tests.outcomes import completion

texts = st.lists(st.sampled_from(["yes", "no", "", "long " * 20]) | st.text(max_size=50), max_size=60)


def profile(found: list[str], fields: tuple[str, ...] | None = None) -> AnswerProfile:
    made = AnswerProfile()
    for text in found:
        made.add(completion(text), fields)
    return made


def merged(*parts: AnswerProfile) -> AnswerProfile:
    total = AnswerProfile()
    for part in parts:
        total.merge(part)
    return total


@given(texts, texts, texts)
@examples(0.5)
def test_the_profile_is_independent_of_where_and_in_which_order_answers_are_added(
    a: list[str], b: list[str], c: list[str]
) -> None:
    whole = profile([*a, *b, *c])
    assert merged(profile(a), profile(b), profile(c)) == whole
    assert merged(profile(c), merged(profile(b), profile(a))) == whole


@given(st.integers(0, 10**9))
def test_a_class_of_lengths_is_at_most_an_eighth_of_its_length(characters: int) -> None:
    start, after = class_start(length_class(characters)), class_start(length_class(characters) + 1)
    assert start <= characters < after
    assert after - start <= max(1, characters / 8)


def test_few_different_short_answers_are_labels() -> None:
    assert profile(["yes"] * 8 + [" no\n"] * 4).label_counts() == {"answer": {"yes": 8, "no": 4}}


@pytest.mark.parametrize(
    "found",
    [
        [f"answer {number}" for number in range(200)],  # too many
        ["a", "b", "c"],  # none occurs more than once
        ["yes"] * 90 + ["a whole sentence, which is longer than a label may be"] * 10,
    ],
)
def test_other_answers_are_not(found: list[str]) -> None:
    assert profile(found).label_counts() == {}


def test_enums_and_booleans_of_a_schema_are_labels_also_as_pydantic_writes_them() -> None:
    class Severity(Enum):
        LOW = "low"
        HIGH = "high"

    class Answer(BaseModel):
        severity: Severity
        urgent: bool
        words: str

    fields = label_fields(Answer.model_json_schema())
    assert fields == ("severity", "urgent")
    made = AnswerProfile()
    for severity, urgent in (("low", True), ("high", False), ("low", False)):
        parsed = {"severity": severity, "urgent": urgent, "words": "…"}
        made.add(completion("{}", parsed=parsed), fields)
    assert made.label_counts() == {"severity": {"low": 2, "high": 1}, "urgent": {"false": 2, "true": 1}}


def test_equal_numbers_are_one_label() -> None:
    made = AnswerProfile()
    for grade in (4, 4.0, 0.5, True):
        made.add(completion("{}", parsed={"grade": grade}), ("grade",))
    assert made.label_counts() == {"grade": {"4": 2, "0.5": 1, "true": 1}}


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        (None, None),
        ({"type": "array"}, ()),
        ({"properties": {"a": True, "b": {"$ref": "#/$defs/None"}, "c": {"$ref": 1}}}, ()),
        ({"properties": {"a": {"enum": 3}, "b": {"enum": ["x"]}}}, ("b",)),
    ],
)
def test_a_schema_of_any_form_has_fields_or_none(schema: Any, fields: Any) -> None:
    assert label_fields(schema) == fields


def test_at_most_ten_fields_and_fifty_labels_are_kept() -> None:
    assert len(label_fields({"properties": {str(n): {"enum": []} for n in range(99)}})) == MAX_FIELDS
    made = AnswerProfile()
    for number in range(100):
        made.add(completion("{}", parsed={"a": f"value {number}"}), ("a",))
    labels = made.label_counts()["a"]
    assert (len(labels), labels[OTHERS]) == (51, 50)


@pytest.mark.parametrize("text", ["", "  \n", "null", "{}", "[]", '""'])
def test_an_answer_that_says_nothing_is_empty(text: str) -> None:
    assert profile([text, "0"]).empty == 1
    assert profile([text, "0"], fields=()).empty == 1


def test_vectors_are_no_empty_answers_and_have_no_labels() -> None:
    made = AnswerProfile()
    for _ in range(10):
        made.add(completion("", parsed=[0.5, 0.5]), None)
    assert (made.empty, made.lengths, made.label_counts()) == (0, {}, {})
    assert made.models.total() == 10


def test_a_server_that_names_another_model_with_each_answer_does_not_fill_the_memory() -> None:
    parts = []
    for number in range(3 * MAX_MODELS):
        part = AnswerProfile()
        part.add(completion(model=f"m-{number}"), None)
        parts.append(part)
    total = merged(*parts)
    assert len(total.models) <= MAX_MODELS + 1
    assert total.models.total() == 3 * MAX_MODELS
