"""What each metric says of an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.measure.evaluation.marks import NO_ANSWER, marker_of
from airflow_provider_llmbeam.pipeline.measure.review.fields import AnswerFields
from airflow_provider_llmbeam.pipeline.measure.review.sample import golden_record
from airflow_provider_llmbeam.spec.evaluation import Metric

SCHEMA = {"type": "object", "properties": {"a": {}}}


def mark(metric, answer, expected=None, schema=None):
    parsed = TypeAdapter(Metric).validate_python(metric)
    row = {"expected_a": expected}
    return marker_of("a", parsed, {"1": row}, schema)(row, answer)


@pytest.mark.parametrize(
    ("metric", "answer", "expected", "value"),
    [
        ("exact", "Good", "Good", 1),
        ("exact", "Good ", "Good", 0),
        ({"type": "exact", "ignore_case": True}, "GOOD", "good", 1),
        ("exact", "caf\u00e9", "cafe\u0301", 1),
        ("label_f1", "cafe\u0301", "caf\u00e9", 1),
        ("exact", "caf\u00e9", "cafe", 0),
        ({"type": "exact", "ignore_whitespace": True}, " very\n good ", "very good", 1),
        ("exact", "3", 3, 1),
        ("exact", NO_ANSWER, "null", 0),
        ("numeric", "12.50", 12.5, 1),
        ("numeric", "about 12", 12, 0),
        ({"type": "numeric", "absolute_tolerance": 0.5}, "12.5", "12", 1),
        ({"type": "numeric", "absolute_tolerance": 0.4}, "12.5", "12", 0),
        ({"type": "numeric", "relative_tolerance": 0.1}, "-110", -100, 1),
        ({"type": "numeric", "absolute_tolerance": 0.1}, "0.4", 0.3, 1),
        ({"type": "numeric", "absolute_tolerance": 0.1}, "0.400000001", 0.3, 0),
        ({"type": "numeric", "relative_tolerance": 0.1}, "1.1", 1, 1),
        ("numeric", "0.30000000000000004", 0.3, 0),
        ("numeric", "nan", 1, 0),
        ("numeric", NO_ANSWER, 1, 0),
        ("valid_json", '{"a": 1}', None, 1),
        ("valid_json", "{'a': 1}", None, 0),
        ({"type": "valid_json", "json_schema": {"type": "array"}}, "{}", None, 0),
        ("valid_json", NO_ANSWER, None, 0),
        ({"type": "python", "function": "operator:contains"}, "expected_a", None, 1),
        ({"type": "python", "function": "operator:contains"}, NO_ANSWER, None, 0),
    ],
)
def test_the_mark_of_a_text(metric, answer, expected, value):
    assert mark(metric, answer, expected).value == value


@pytest.mark.parametrize(
    ("answer", "expected", "value"),
    [
        ({"a": True}, "true", 1),
        ({"a": 3}, "3", 1),
        ({"a": {"b": [1]}}, {"b": [1]}, 1),
        ({}, "null", 0),
        ("a", "a", 0),
    ],
)
def test_the_mark_of_a_field_whose_expected_value_may_come_from_a_csv_file(answer, expected, value):
    assert mark("exact", answer, expected, SCHEMA).value == value


@pytest.mark.parametrize(
    ("answer", "expected", "value"),
    [
        (1, 1.0, 1),
        (1.0, 1, 1),
        (1.0, "1", 1),
        (1.0, "1.0", 1),
        (1.5, "1.5", 1),
        ("1", 1.0, 1),
        ("1.0", 1.0, 1),
        ([{"b": 1.0}], [{"b": 1}], 1),
        (2.0**60, 2**60, 0),
        ("1.0", "1", 0),
        (1, "1.0", 0),
        (1.5, 1, 0),
        (True, 1, 0),
        (True, 1.0, 0),
    ],
)
def test_a_number_equals_another_way_to_write_it_and_a_text_does_not(answer, expected, value):
    for metric in ("exact", "label_f1"):
        found = mark(metric, {"a": answer}, expected, SCHEMA)
        assert (found.value, found.expected) == (value, expected)
    assert len({*mark("label_f1", {"a": answer}, expected, SCHEMA).labels}) == 2 - value


@pytest.mark.parametrize("metric", ["exact", "label_f1"])
@pytest.mark.parametrize(
    ("schema", "answer", "expected", "value"),
    [
        ({"type": "string"}, "good", "good", 1),
        ({"type": ["string", "null"]}, "good", None, 0),
        ({"type": ["string", "null"]}, None, "good", 0),
        ({"type": ["string", "null"]}, None, None, 1),
        ({"type": ["string", "null"]}, None, "null", 1),
        ({"type": ["string", "integer"]}, 1, 1, 1),
        ({"type": "array"}, ["a"], ["a"], 1),
        ({"enum": ["good", "bad"]}, "good", "good", 1),
        ({"type": "object"}, {"a": "good"}, "good", 1),
        ({}, {"a": "good"}, "good", 1),
    ],
)
def test_an_answer_that_is_no_object_is_compared_as_a_whole(metric, schema, answer, expected, value):
    assert mark(metric, answer, expected, schema).value == value
    assert mark("numeric", 2, 2, {"type": "integer"}).value == 1


def test_an_answer_that_is_no_object_has_no_field():
    with pytest.raises(
        JobSpecError, match=r"`metrics.a.field`: the answers have no fields, .* is 'array'; got 'b'"
    ):
        mark({"type": "exact", "field": "b"}, ["a"], "a", {"type": "array"})


@pytest.mark.parametrize("metric", ["exact", "label_f1"])
def test_an_accepted_answer_that_lacks_an_optional_field_is_right_in_the_next_evaluation(metric):
    """A review writes `null` for the field."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    accepted = golden_record({"id": 1}, AnswerFields(schema).values({"b": "x"}))
    assert mark(metric, {"b": "x"}, accepted["expected_a"], schema).value == 1
    assert mark(metric, NO_ANSWER, accepted["expected_a"], schema).value == 0


def test_a_field_may_be_nested():
    assert mark({"type": "exact", "field": "a.b"}, {"a": {"b": 1}}, 1, SCHEMA).value == 1


def test_a_value_of_a_schema_is_json_whatever_its_type():
    assert mark("valid_json", "no json", schema={"type": "string"}).value == 1


def test_labels_are_those_of_the_folded_texts():
    assert mark({"type": "label_f1", "ignore_case": True}, "Good", "GOOD").labels == ("good", "good")
    assert mark("label_f1", NO_ANSWER, "good").labels == ("good", None)


def test_an_error_of_a_function_names_it_and_says_that_nothing_is_paid_again():
    with pytest.raises(
        JobFailedError, match=r"'operator:truediv' raised TypeError: .* pays for none of them again"
    ):
        mark({"type": "python", "function": "operator:truediv"}, "x")


@given(st.text() | st.integers() | st.booleans() | st.none(), st.text() | st.integers() | st.none())
def test_every_mark_is_0_or_1_and_an_equal_answer_is_right(answer, expected):
    for metric in ("exact", "label_f1"):
        assert mark(metric, answer, expected).value in (0, 1)
        assert mark(metric, {"a": expected}, expected, SCHEMA).value == 1


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_a_larger_tolerance_refuses_nothing_that_a_smaller_one_accepts(answer, expected, tolerance):
    strict, wide = (
        mark({"type": "numeric", "absolute_tolerance": size}, answer, expected).value
        for size in (tolerance, 2 * tolerance)
    )
    assert strict <= wide
