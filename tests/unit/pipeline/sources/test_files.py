"""Rows of tables."""

from __future__ import annotations

import pyarrow as pa

from airflow_provider_llmbeam.pipeline.elements import FailedRow
from airflow_provider_llmbeam.pipeline.sources.files import parse_table


def test_a_time_in_a_zone_that_does_not_exist_fails_its_row_alone():
    times = pa.array([1, None], pa.timestamp("us", "Mars/Base"))
    failed, read = parse_table(pa.table({"id": [1, 2], "at": times}))
    assert isinstance(failed, FailedRow)
    assert failed.failure.kind == "unreadable_row"
    assert failed.failure.message.startswith("column 'at' cannot be read: ")
    assert read == {"id": 2, "at": None}


def test_text_in_a_binary_column_is_text_however_deep_it_is():
    binary = pa.binary()
    table = pa.table(
        {
            "tags": pa.array([[b"a", b"\xff"]], pa.list_(binary)),
            "inner": pa.array(
                [{"name": b"b", "parts": [b"c"]}], pa.struct({"name": binary, "parts": pa.list_(binary)})
            ),
            "map": pa.array([[("k", b"d")]], pa.map_(pa.string(), binary)),
            "label": pa.array([b"e"], binary).dictionary_encode(),
            "id": pa.array([b"four"], pa.binary(4)),
        }
    )
    (row,) = parse_table(table)
    assert row == {
        "tags": ["a", b"\xff"],
        "inner": {"name": "b", "parts": ["c"]},
        "map": [("k", "d")],
        "label": "e",
        "id": b"four",
    }
