from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.pipeline.sinks.files import equalize_types
from airflow_provider_llmbeam.pipeline.sinks.parquet import read_staged, write_parquet
from airflow_provider_llmbeam.spec.sink import OUTPUT_COLUMNS


def content_of(*rows: dict[str, Any]) -> str:
    file = io.BytesIO()
    empty = dict.fromkeys(OUTPUT_COLUMNS[2:5], "x") | dict.fromkeys(OUTPUT_COLUMNS[5:], 1)
    lines = [
        encode_record({"id": row["id"], "answer": row["answer"], "llmbeam_origin": row["llmbeam_origin"], **empty})
        for row in rows
    ]
    write_parquet(lines, file, OutputColumns(("id",)))
    staged = read_staged(file)
    assert (staged.rows, [*staged.types]) == (len(rows), ["id", *OUTPUT_COLUMNS])
    return staged.content


def test_equal_answers_have_equal_content_regardless_of_order_and_origin() -> None:
    one, two = (
        {"id": 1, "answer": "a", "llmbeam_origin": "fresh"},
        {"id": 2, "answer": "b", "llmbeam_origin": "fresh"},
    )
    content = content_of(one, two)
    assert content_of(two, {**one, "llmbeam_origin": "resumed"}) == content
    assert content_of(one, {**two, "answer": "c"}) != content
    assert content_of(one) != content
    assert content_of({"id": 1, "answer": '"llmbeam_origin": "fresh", ', "llmbeam_origin": "fresh"}) != content_of(
        one | {"answer": ""}
    )


def test_files_have_equal_types_also_if_an_attempt_was_killed_between_its_renames(tmp_path: Path) -> None:
    others = dict.fromkeys(OUTPUT_COLUMNS[:5], "x") | dict.fromkeys(OUTPUT_COLUMNS[5:], 1)
    for number, key in enumerate(("n/a", 1, 2)):
        with (tmp_path / f"staged-{number}.parquet").open("wb") as file:
            write_parquet([encode_record({"id": key, **others})], file, OutputColumns(("id",)))
    files = {str(tmp_path / f"staged-{n}.parquet"): str(tmp_path / f"final-{n}.parquet") for n in range(3)}
    for count in (0, 1, 2, 3):
        moves = [*equalize_types(files).items()][:count]
        storage.rename({staged: final for staged, final in moves if storage.exists(staged)})
    found = pq.read_table([*files.values()])
    assert found["id"].to_pylist() == ["n/a", "1", "2"]
