from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.measure.forget.keys import NamedKeys, key_values
from airflow_provider_llmbeam.pipeline.measure.forget.rewrite import lines_removed, rows_of, rows_removed

numbers = st.lists(st.integers(0, 9), max_size=20)


@given(numbers, st.sets(st.integers(0, 9), max_size=4))
def test_other_rows_of_a_parquet_file_keep_their_values_types_and_order(
    tmp_path_factory, numbers: list[int], gone: set[int]
) -> None:
    directory: Path = tmp_path_factory.mktemp("rows")
    path = directory / "answers.parquet"
    schema = pa.schema([("id", pa.int64()), ("answer", pa.struct([("a", pa.list_(pa.float32()))]))])
    rows = [{"id": number, "answer": {"a": [0.5, number]}} for number in numbers]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=3)
    count = rows_removed(str(path), f"{directory}/", lambda row: row["id"] in gone, dry_run=False)
    assert count == sum(number in gone for number in numbers)
    assert pq.read_table(path).schema.equals(schema)
    assert pq.read_table(path).to_pylist() == [row for row in rows if row["id"] not in gone]
    assert list(directory.iterdir()) == [path]


def test_other_lines_keep_their_bytes_and_a_file_without_lines_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "segment.jsonl"
    path.write_bytes(b'{"a":1 }\n{"b": 2}\n{"a":3, half')
    assert lines_removed(str(path), lambda line: b'"b"' in line, dry_run=True) == 1
    assert lines_removed(str(path), lambda line: b'"b"' in line, dry_run=False) == 1
    assert path.read_bytes() == b'{"a":1 }\n{"a":3, half'
    assert lines_removed(str(path), lambda line: True, dry_run=False) == 2
    assert not path.exists()


def test_lines_that_are_no_rows_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('no json\n[1]\n{"id": 1}\n{"id": 2}\n')
    assert list(rows_of(str(path))) == [{"id": 1}, {"id": 2}]
    assert rows_removed(str(path), f"{tmp_path}/", lambda row: row["id"] == 1, dry_run=False, is_private=True) == 1
    assert path.read_text() == 'no json\n[1]\n{"id": 2}\n'
    assert path.stat().st_mode & 0o777 == 0o600


@given(st.lists(st.integers() | st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_a_key_is_named_by_its_value_or_by_the_json_of_its_values(values: list[int | str]) -> None:
    columns = tuple(f"c{number}" for number in range(len(values)))
    row = dict(zip(columns, values, strict=True))
    named = str(values[0]) if len(values) == 1 else json.dumps(values)
    assert NamedKeys([named], columns).of_row(row) == named
    assert key_values(named, columns) == [str(value) for value in values]
    assert NamedKeys([named], (*columns, "missing")).of_row(row) is None


def test_a_key_that_lacks_columns_names_no_row() -> None:
    assert key_values("17", ("a", "b")) == ["17", ""]
    assert NamedKeys(["17"], ("a", "b")).of_row({"a": 17, "b": 1}) is None


def test_a_whole_number_names_an_integer_and_a_float_and_no_other_text() -> None:
    for named in ("1", "1.0"):
        assert {NamedKeys([named], ("a",)).of_row({"a": value}) for value in (1, 1.0)} == {named}
        assert NamedKeys([named], ("a",)).of_row({"a": named}) == named
    for other in ("1.0", True, 1.5, 10, float("nan"), None):
        assert NamedKeys(["1"], ("a",)).of_row({"a": other}) is None
    assert NamedKeys(["1.0"], ("a",)).of_row({"a": "1"}) is None
    assert {"a": 1.0} in [row for row in NamedKeys(["1"], ("a",)).rows() if type(row["a"]) is float]


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
    assert key_values(named, tuple(row)) == [str(value).removesuffix(".0") for value in row.values()]
    assert row in list(keys.rows())


def test_an_object_of_other_columns_or_of_null_names_no_row():
    for named in ('{"k": 4}', '{"id": 4, "k": 4}', '{"id": null}'):
        assert NamedKeys([named], ("id",)).of_row({"id": 4}) is None


def test_two_keys_of_one_row_are_both_found():
    keys = NamedKeys(["1", "1.0", '{"id": 1}'], ("id",))
    assert keys.of_row({"id": 1}) is not None
    assert keys.unfound == ()
