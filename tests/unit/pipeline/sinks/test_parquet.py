from __future__ import annotations

import io
from typing import Any

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.pipeline.sinks.parquet import read_staged, write_parquet
from airflow_provider_llmbeam.spec.source import OUTPUT_COLUMNS


def content_of(*rows: dict[str, Any]) -> str:
    file = io.BytesIO()
    empty = dict.fromkeys(OUTPUT_COLUMNS[2:5], "x") | dict.fromkeys(OUTPUT_COLUMNS[5:], 1)
    lines = [
        encode_record({"id": row["id"], "answer": row["answer"], "origin": row["origin"], **empty}) for row in rows
    ]
    write_parquet(lines, file, OutputColumns(("id",)))
    staged = read_staged(file)
    assert (staged.rows, [*staged.types]) == (len(rows), ["id", *OUTPUT_COLUMNS])
    return staged.content


def test_equal_answers_have_equal_content_regardless_of_order_and_origin() -> None:
    one, two = {"id": 1, "answer": "a", "origin": "fresh"}, {"id": 2, "answer": "b", "origin": "fresh"}
    content = content_of(one, two)
    assert content_of(two, {**one, "origin": "resumed"}) == content
    assert content_of(one, {**two, "answer": "c"}) != content
    assert content_of(one) != content
    assert content_of({"id": 1, "answer": '"origin": "fresh", ', "origin": "fresh"}) != content_of(
        one | {"answer": ""}
    )
