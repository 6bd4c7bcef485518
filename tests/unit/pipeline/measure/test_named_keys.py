"""Keys as a user names them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.measure.named_keys import NamedKeys


@given(st.lists(st.integers() | st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_a_key_is_named_by_its_value_or_by_the_json_of_its_values(values: list[int | str]) -> None:
    columns = tuple(f"c{number}" for number in range(len(values)))
    row = dict(zip(columns, values, strict=True))
    named = str(values[0]) if len(values) == 1 else json.dumps(values)
    assert NamedKeys([named], columns).of_row(row) == named
    assert dict(zip(columns, values, strict=True)) in list(NamedKeys([named], columns).rows())
    assert NamedKeys([named], (*columns, "missing")).of_row(row) is None


def test_a_key_that_lacks_columns_names_no_row() -> None:
    keys = NamedKeys(["17"], ("a", "b"))
    assert keys.of_row({"a": 17, "b": 1}) is None
    assert list(keys.rows()) == []


def test_a_whole_number_names_an_integer_and_a_float_and_no_other_text() -> None:
    for named in ("1", "1.0"):
        assert {NamedKeys([named], ("a",)).of_row({"a": value}) for value in (1, 1.0)} == {named}
        assert NamedKeys([named], ("a",)).of_row({"a": named}) == named
    for other in ("1.0", True, 1.5, 10, float("nan"), None):
        assert NamedKeys(["1"], ("a",)).of_row({"a": other}) is None
    assert NamedKeys(["1.0"], ("a",)).of_row({"a": "1"}) is None
    assert {"a": 1.0} in [row for row in NamedKeys(["1"], ("a",)).rows_and_floats() if type(row["a"]) is float]


def test_a_number_in_a_list_names_its_text() -> None:
    for value in (1, 1.0, "1"):
        assert NamedKeys(['["a", 1]'], ("k", "id")).of_row({"k": "a", "id": value}) == '["a", 1]'
    assert NamedKeys(['["a", null]'], ("k", "id")).of_row({"k": "a", "id": "None"}) is None


@pytest.mark.parametrize(
    ("named", "row"),
    [
        ('{"id": 4}', {"id": 4.0}),
        ('{"id": "a b"}', {"id": "a b"}),
        ('{"id": "{}"}', {"id": "{}"}),
        ('{"id": 4, "k": "a"}', {"k": "a", "id": 4}),
    ],
)
def test_a_key_is_also_named_by_the_object_of_its_columns(named, row):
    keys = NamedKeys([named, "other"], tuple(row))
    assert keys.unfound == (named, "other")
    assert keys.of_row(row) == named
    assert keys.unfound == ("other",)
    assert row in list(keys.rows())


def test_an_object_of_other_columns_or_of_null_names_no_row():
    for named in ('{"k": 4}', '{"id": 4, "k": 4}', '{"id": null}'):
        assert NamedKeys([named], ("id",)).of_row({"id": 4}) is None


def test_two_keys_of_one_row_are_both_found():
    keys = NamedKeys(["1", "1.0", '{"id": 1}'], ("id",))
    assert keys.of_row({"id": 1}) is not None
    assert keys.unfound == ()
