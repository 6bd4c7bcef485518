"""The form of an answer's fields, which corrections can be part of an answer, and the selection of answers."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.measure.review import AnswerFields, stratify
from tests.hostile import odd


class Mood(StrEnum):
    GOOD = "good"
    BAD = "bad"


class Answer(BaseModel):
    mood: Mood
    stars: int | None = None
    reason: str
    tags: list[str]


FIELDS = AnswerFields(Answer.model_json_schema())
FORMS = (
    ("mood", "good", {"type": "string", "enum": ["good", "bad"]}),
    ("stars", None, {"type": ["integer", "null"]}),
    ("stars", 4, {"type": ["integer", "null"]}),
    ("reason", "short", {"type": "string"}),
    ("reason", "two\nlines", {"type": "string", "format": "multiline"}),
    ("reason", "x" * 81, {"type": "string", "format": "multiline"}),
    ("reason", None, {"type": ["string", "null"]}),
)


@pytest.mark.parametrize(("name", "value", "schema"), FORMS)
def test_a_scalar_has_a_widget_of_its_type(name, value, schema):
    assert FIELDS.form(name, value) == {"value": value, "schema": schema, "is_json": False}


def test_a_missing_value_can_be_chosen_among_the_listed_ones():
    assert FIELDS.form("mood", None)["schema"]["enum"] == ["good", "bad", None]


@pytest.mark.parametrize("value", [["a", "b"], "NUL \0", "\u202etxet", "\ud83d"])
def test_a_list_and_hidden_characters_are_shown_as_json_text(value):
    found = FIELDS.form("tags" if isinstance(value, list) else "reason", value)
    assert found["is_json"]
    assert found["value"].isascii()
    assert found["value"].isprintable() or "\n" in found["value"]


def test_an_answer_has_the_values_of_all_fields_and_a_text_is_one():
    assert FIELDS.values({"mood": "bad", "other": 1}) == {
        "mood": "bad",
        "stars": None,
        "reason": None,
        "tags": None,
    }
    assert AnswerFields(None).values("Good.") == {"answer": "Good."}
    assert AnswerFields({"type": "array", "items": {"type": "string"}}).values(["a"]) == {"answer": ["a"]}


def test_a_correction_must_match_the_schema_of_its_field_and_not_that_of_the_others():
    assert FIELDS.mismatch({"mood": "bad"}) is None
    assert FIELDS.mismatch({"mood": "fine"}).startswith("at $.mood: 'fine' is not one of")
    assert FIELDS.mismatch({"tags": "a"}) == "at $.tags: 'a' is not of type 'array'"
    assert AnswerFields(None).mismatch({"answer": 3}) == "it is no text"
    whole = AnswerFields({"type": "array", "items": {"type": "string"}})
    assert whole.mismatch({"answer": [1]}) == "at $[0]: 1 is not of type 'string'"
    recursive = AnswerFields(
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": {"type": "string"}}}}}
    )
    assert recursive.names == ("a",)
    assert recursive.mismatch({"a": "b"}) is None


def test_an_unknown_field_is_refused_with_the_nearest_one():
    with pytest.raises(JobSpecError, match=r"`fields`: the answers have no field 'moood'; did you mean `mood`\?"):
        FIELDS.check("fields", ["mood", "moood"])


@pytest.mark.fuzz
@given(odd, st.sampled_from(FIELDS.names))
def test_any_answer_has_a_form(answer, name):
    values = FIELDS.values(answer if isinstance(answer, dict) else {name: answer})
    found = FIELDS.form(name, values[name])
    assert found["schema"]


LABELS = st.lists(st.sampled_from("abcdefgh"), max_size=60)
SIZES = st.integers(1, 30)


def keyed(labels):
    return {f"key {number}": label for number, label in enumerate(labels)}


@given(LABELS, SIZES)
def test_as_many_keys_as_wanted_are_selected_once_and_in_their_order(labels, size):
    found = stratify(keyed(labels), size)
    assert len(found) == min(size, len(labels))
    assert found == [key for key in keyed(labels) if key in found]
    assert found == stratify(keyed(labels), size)


@given(LABELS, SIZES)
def test_every_label_gets_its_share_as_far_as_it_has_rows(labels, size):
    there = Counter(labels)
    selected = Counter(keyed(labels)[key] for key in stratify(keyed(labels), size))
    most = max(selected.values(), default=0)
    for label, count in there.items():
        assert selected[label] >= min(count, most - 1), "one more than another only by the remainder"
    if size >= len(there):
        assert selected.keys() == there.keys()


@given(LABELS, SIZES)
def test_the_first_rows_of_each_label_are_selected(labels, size):
    found = set(stratify(keyed(labels), size))
    for label in set(labels):
        of_label = [key in found for key, each in keyed(labels).items() if each == label]
        assert of_label == sorted(of_label, reverse=True)


@given(LABELS, SIZES)
def test_without_labels_the_first_rows_are_selected(labels, size):
    unlabelled = dict.fromkeys(keyed(labels), "")
    assert stratify(unlabelled, size) == [*unlabelled][:size]
