from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from airflow_provider_llmbeam.spec import FilesSource
from airflow_provider_llmbeam.spec.source import RowsSource, format_of


def test_a_source_resolves_its_format_from_the_extension() -> None:
    assert FilesSource(uri="in/*.csv.gz", key=("id",)).resolved_format == "csv"


def test_an_explicit_format_takes_precedence_over_the_extension() -> None:
    assert FilesSource(uri="in/a.json", format="csv", key=("id",)).resolved_format == "csv"


def test_a_source_without_a_known_extension_or_a_format_is_refused() -> None:
    (problem,) = FilesSource.problems({"uri": "in/table", "key": ["id"]})
    assert "`format` is needed: 'in/table' ends in none of" in str(problem)


def test_an_unknown_format_is_refused() -> None:
    (problem,) = FilesSource.problems({"uri": "in/table", "key": ["id"], "format": "orc"})
    assert problem.field == "format"
    assert problem.got == "orc"
    assert "'avro'" in problem.want


def test_an_empty_uri_is_refused() -> None:
    assert "uri" in {problem.field for problem in FilesSource.problems({"uri": "", "key": ["id"]})}


def test_a_source_without_key_is_refused() -> None:
    (problem,) = FilesSource.problems({"uri": "a.csv", "key": []})
    assert problem.field == "key"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("id", ("id",)),
        ("['a', 'b']", ("a", "b")),
        ('["a"]', ("a",)),
        (["a", "b"], ("a", "b")),
        ("[odd]", ("[odd]",)),
    ],
)
def test_a_key_is_a_column_or_several_also_as_text(given: object, expected: tuple[str, ...]) -> None:
    assert FilesSource.parse({"uri": "a.csv", "key": given}).key == expected


def test_a_source_without_a_key_says_what_a_key_is() -> None:
    (problem,) = FilesSource.problems({"uri": "a.csv"})
    assert str(problem) == ("`key`: this field is needed: the columns that identify a row, e.g. 'ticket_id'.")


def test_a_key_column_named_twice_is_refused() -> None:
    (problem,) = FilesSource.problems({"uri": "a.csv", "key": ["id", "id"]})
    assert str(problem) == "`key`: must name each column once; got ['id', 'id']."


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("in/a.jsonl", "jsonl"),
        ("in/a.ndjson", "jsonl"),
        ("in/a.json", "jsonl"),
        ("in/*.csv", "csv"),
        ("gs://bucket/table/part-*.parquet", "parquet"),
        ("in/a.csv.gz", "csv"),
        ("in/a.JSONL.GZ", "jsonl"),
        ("in/2026.11.20/a.csv", "csv"),
    ],
)
def test_the_extension_determines_the_format(uri: str, expected: str) -> None:
    assert format_of(uri) == expected


@pytest.mark.parametrize("uri", ["in/table", "in/*", "in.csv/table", "in/a.txt", "in/a.gz", ""])
def test_without_a_known_extension_the_format_is_required(uri: str) -> None:
    with pytest.raises(ValueError, match=r"`format` is needed: .* ends in none of .*\.jsonl.*\.parquet"):
        format_of(uri)


def test_a_row_of_the_spec_that_is_nested_too_deep_is_refused_with_its_number() -> None:
    """Pydantic serializes 255 levels, and the task failed when it wrote the spec for its job."""
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    (problem,) = RowsSource.problems({"type": "rows", "key": ["id"], "rows": [{"id": 1}, {"id": 2, "a": deep}]})
    assert problem.field == "rows"
    assert problem.want == "row 1 is nested more than 100 levels deep"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"x", "y"}, "row 1 has a set in 'tags', "),
        (float("inf"), "row 1 has inf in 'tags', "),
        (object(), "row 1 has a object in 'tags', which JSON does not have"),
        ([b"\xff"], "row 1 has a list in 'tags', which JSON does not have"),
    ],
)
def test_a_value_of_a_row_that_another_process_would_read_in_another_way_is_refused(
    value: object, reason: str
) -> None:
    (problem,) = RowsSource.problems(
        {"type": "rows", "key": ["id"], "rows": [{"id": 1}, {"id": 2, "tags": value}]}
    )
    assert problem.field == "rows"
    assert problem.want.startswith(reason)


def test_half_a_surrogate_pair_in_a_row_of_the_spec_is_replaced_and_the_spec_can_be_written() -> None:
    row = {"id": "cut \ud83d", "more": {"\ude00": ["\ud83d\ude00", 1]}}
    source = RowsSource(type="rows", key=("id",), rows=(row,))
    assert RowsSource.model_validate_json(source.model_dump_json()).rows == (
        {"id": "cut \ufffd", "more": {"\ufffd": ["\N{GRINNING FACE}", 1]}},
    )


def test_rows_of_numpy_and_pandas_are_plain() -> None:
    values = {"number": np.int64(5), "time": pd.NaT, "none": pd.NA, "nan": float("nan"), "list": np.array([1])}
    source = RowsSource.parse({"type": "rows", "key": ["id"], "rows": [{"id": 1, **values}]})
    assert source.rows == ({"id": 1, "number": 5, "time": None, "none": None, "nan": None, "list": [1]},)
