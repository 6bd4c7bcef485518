from __future__ import annotations

import pytest

from airflow_provider_llmbeam.spec import FilesSource
from airflow_provider_llmbeam.spec.source import OUTPUT_COLUMNS, format_of


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


def test_a_key_is_a_list_and_not_a_string() -> None:
    (problem,) = FilesSource.problems({"uri": "a.csv", "key": "id"})
    assert problem.field == "key"
    assert problem.got == "id"


@pytest.mark.parametrize("column", OUTPUT_COLUMNS)
def test_a_key_that_an_output_column_would_overwrite_is_refused(column: str) -> None:
    (problem,) = FilesSource.problems({"uri": "a.csv", "key": ["id", column]})
    assert problem.field == "key"
    assert f"['{column}'] would be overwritten" in problem.want


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
