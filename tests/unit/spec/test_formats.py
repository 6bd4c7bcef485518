from __future__ import annotations

import pytest

from airflow_provider_llmbeam.spec.formats import format_of


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
def test_the_ending_says_the_format(uri: str, expected: str) -> None:
    assert format_of(uri) == expected


@pytest.mark.parametrize("uri", ["in/table", "in/*", "in.csv/table", "in/a.txt", "in/a.gz", ""])
def test_without_a_known_ending_the_format_must_be_given(uri: str) -> None:
    with pytest.raises(ValueError, match=r"`format` is needed: .* ends in none of .*\.jsonl.*\.parquet"):
        format_of(uri)
