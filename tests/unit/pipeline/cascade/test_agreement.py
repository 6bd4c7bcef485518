from __future__ import annotations

from enum import Enum

import pytest
from pydantic import BaseModel

from airflow_provider_llmbeam.pipeline.cascade.agreement import (
    agrees,
    find_judged_parts,
    find_label_path,
    label_of,
)
from airflow_provider_llmbeam.spec import Cascade

JUDGE = {
    "type": "judge",
    "rubric": "Same? {{ row.answer }} {{ row.expected }}",
    "model": {"type": "echo", "name": "echo"},
}


def agreement(given):
    return Cascade(stages=[{"model": {"type": "echo", "name": "echo"}}], agreement=given).agreement


@pytest.mark.parametrize(
    ("given", "answer", "expected", "is_agreed"),
    [
        ("exact", "yes", "yes", True),
        ("exact", "yes", "Yes", False),
        ({"type": "exact", "ignore_case": True, "ignore_whitespace": True}, " yes  sir", "Yes sir", True),
        ("exact", {"a": 1, "b": "x"}, {"b": "x", "a": 1.0}, True),
        ("exact", {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, False),
        ("exact", {"a": 1}, {"a": 1, "b": None}, True),
        ("exact", {"a": 1}, "a", False),
        ({"a": "exact"}, {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, True),
        ({"a.b": "exact"}, {"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, True),
        ({"a.b": "exact"}, {"a": {"b": 1}}, {"a": {"b": 2}}, False),
        ({"a.b": "exact"}, {"a": None}, {"a": {"b": 2}}, False),
        (
            {"*": "exact", "n": {"type": "numeric", "relative_tolerance": 0.1}},
            {"n": 95, "b": 1},
            {"n": 100, "b": 1},
            True,
        ),
        (
            {"*": "exact", "n": {"type": "numeric", "relative_tolerance": 0.1}},
            {"n": 89, "b": 1},
            {"n": 100, "b": 1},
            False,
        ),
        (
            {"*": "exact", "n": {"type": "numeric", "relative_tolerance": 0.1}},
            {"n": 95, "b": 1},
            {"n": 100, "b": 2},
            False,
        ),
        ("numeric", None, None, True),
        ("numeric", "7", 7, True),
        ("set_f1", ["a", "b", "c"], ["c", "b", "a"], True),
        ("set_f1", ["a", "b", "c"], ["a", "b", "d"], False),
        ({"type": "set_f1", "minimum": 0.6}, ["a", "b", "c"], ["a", "b", "d"], True),
        ("set_f1", [], None, True),
        ("set_f1", "a", ["a"], True),
        (JUDGE, "yes", "indeed", True),
    ],
)
def test_two_answers_agree(given, answer, expected, is_agreed):
    assert agrees(agreement(given), answer, expected) is is_agreed


def test_a_judge_is_asked_about_what_differs_and_sees_all_fields_that_are_not_named_at_once():
    by_judge = agreement({"*": JUDGE, "mood": "exact"})
    answer, expected = {"mood": "good", "why": "a", "how": "b"}, {"mood": "good", "why": "c", "how": "b"}
    ((comparison, one, other),) = find_judged_parts(by_judge, answer, expected)
    assert (comparison.type, one, other) == ("judge", {"why": "a", "how": "b"}, {"why": "c", "how": "b"})
    assert find_judged_parts(by_judge, answer, answer) == ()
    assert find_judged_parts(agreement("exact"), answer, expected) == ()


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Review(BaseModel):
    text: str
    mood: Mood


@pytest.mark.parametrize(
    ("given", "schema", "choices", "path"),
    [
        ("exact", None, (), None),
        ("exact", None, ("yes", "no"), ()),
        ("exact", {"type": "string", "enum": ["a", "b"]}, (), ()),
        ("exact", {"properties": {"text": {"type": "string"}, "mood": {"enum": ["a", "b"]}}}, (), ("mood",)),
        ("exact", {"properties": {"text": True, "good": {"type": "boolean"}}}, (), ("good",)),
        ({"text": "exact"}, {"properties": {"text": {"type": "string"}, "mood": {"enum": ["a"]}}}, (), None),
        ("exact", {"type": "array"}, (), None),
        ("exact", Review.model_json_schema(), (), ("mood",)),
    ],
)
def test_the_class_of_an_answer_is_its_first_compared_field_with_an_enum(given, schema, choices, path):
    assert find_label_path(agreement(given), schema, choices) == path


def test_a_class_is_a_text():
    assert label_of({"mood": "good"}, ("mood",)) == "good"
    assert label_of({"good": True}, ("good",)) == "true"
    assert label_of("yes", ()) == "yes"
    assert label_of("yes", None) is None
