"""What each metric says of an answer; scores against known values, and their properties."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.measure.metrics import (
    NO_ANSWER,
    Mark,
    bootstrap_interval,
    label_scores,
    macro_f1,
    make_marker,
    mean_score,
    score_marks,
)
from airflow_provider_llmbeam.pipeline.measure.review import AnswerFields, golden_record
from airflow_provider_llmbeam.spec.evaluation import Metric

SCHEMA = {"type": "object", "properties": {"a": {}}}
LABELS = st.sampled_from(["good", "bad", "mixed"])
pairs = st.lists(st.tuples(LABELS, LABELS | st.none()), min_size=1, max_size=40)
values = st.lists(st.floats(0, 1), min_size=1, max_size=30)
#: Two spam messages are found, one is missed and one message is wrongly called spam.
SPAM = [("spam", "spam")] * 2 + [("spam", "ham")] + [("ham", "ham")] * 5 + [("ham", "spam")]


def mark(metric, answer, expected=None, schema=None):
    parsed = TypeAdapter(Metric).validate_python(metric)
    row = {"expected_a": expected}
    return make_marker("a", parsed, {"1": row}, schema)(row, answer)


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


def test_the_scores_of_labels_are_those_of_their_definitions():
    spam = label_scores(SPAM)["spam"]
    assert (spam.precision, spam.recall, spam.rows) == (2 / 3, 2 / 3, 3)
    assert spam.f1 == pytest.approx(2 / 3)
    assert label_scores(SPAM)["ham"].f1 == pytest.approx(2 * 5 / 12)
    assert macro_f1(SPAM) == pytest.approx((2 / 3 + 5 / 6) / 2)


def test_a_label_that_nobody_expected_lowers_the_score_and_a_missing_answer_is_no_label():
    assert macro_f1([("a", "a"), ("a", "b")]) == pytest.approx((2 / 3 + 0) / 2)
    assert macro_f1([("a", "a"), ("a", None)]) == pytest.approx(2 / 3)
    assert label_scores([("a", "a"), ("a", "b")])["b"].model_dump() == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "rows": 0,
    }


@given(pairs)
def test_f1_is_the_harmonic_mean_and_depends_on_no_order(found):
    for label in label_scores(found).values():
        both = label.precision + label.recall
        assert label.f1 == pytest.approx(2 * label.precision * label.recall / both if both else 0)
    assert macro_f1(found) == pytest.approx(macro_f1(found[::-1]))
    assert 0 <= macro_f1(found) <= 1
    assert (macro_f1(found) == 1) == all(expected == answer for expected, answer in found)


@given(values, st.integers(0, 5))
def test_an_interval_is_within_the_values_and_the_same_for_the_same_seed(found, seed):
    low, high = bootstrap_interval(found, fmean, seed)
    assert min(found) - 1e-9 <= low <= high <= max(found) + 1e-9
    assert bootstrap_interval(found, fmean, seed) == (low, high)


def test_the_interval_of_a_share_is_about_that_of_the_normal_distribution():
    shares = [1.0] * 160 + [0.0] * 40
    low, high = bootstrap_interval(shares, fmean)
    half = 1.96 * math.sqrt(0.8 * 0.2 / 200)
    assert low == pytest.approx(0.8 - half, abs=0.012)
    assert high == pytest.approx(0.8 + half, abs=0.012)


@pytest.mark.full
def test_95_of_100_intervals_contain_the_true_share():
    draws = random.Random(1)
    contained = 0
    for seed in range(100):
        sample = [float(draws.random() < 0.7) for _ in range(80)]
        low, high = bootstrap_interval(sample, fmean, seed)
        contained += low <= 0.7 <= high
    assert contained >= 90


def test_a_score_is_the_mean_of_its_marks_or_the_f1_of_its_labels():
    assert score_marks([Mark(1.0), Mark(0.5)]) == mean_score([1.0, 0.5])
    labelled = score_marks([Mark(float(a == b), a, labels=(a, b)) for a, b in SPAM])
    assert labelled.score == macro_f1(SPAM)
    assert (labelled.rows, set(labelled.labels)) == (9, {"spam", "ham"})
    assert str(mean_score([1.0, 1.0])) == "1.000 (1.000 to 1.000)"
