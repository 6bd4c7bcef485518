from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.sinks.files import shard_of
from airflow_provider_llmbeam.pipeline.sinks.merge_files import merge_dead_letter, publish
from airflow_provider_llmbeam.spec.sink import FilesSink

COLUMNS = OutputColumns(("id",))


def write(path: Path, rows: Iterable[Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"id": key, "answer": "x"}) + "\n" for key in rows))
    return str(path)


@pytest.mark.full
def test_the_memory_of_a_merge_does_not_grow_with_the_rows_that_are_there(tmp_path: Path) -> None:
    sink, rows = FilesSink(uri=f"{tmp_path}/out/", on_existing="merge"), 50_000
    write(tmp_path / "out/answers-00000-of-00001.jsonl", range(rows))
    staged = {0: write(tmp_path / "staging/new.jsonl", range(rows - 10, rows + 10))}
    tracemalloc.start()
    (merged,) = publish(sink, COLUMNS, staged, f"{tmp_path}/staging/")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    lines = Path(merged).read_text().splitlines()
    assert sorted(json.loads(line)["id"] for line in lines) == [*range(rows + 10)]
    assert peak < 3 * 2**20, "the keys of all rows took 6 MiB"


@pytest.mark.parametrize("shards", [1, 3])
def test_a_whole_number_of_type_float_replaces_the_answer_of_the_integer(tmp_path: Path, shards: int) -> None:
    """As pandas writes integers of a column in which one value is missing."""
    sink = FilesSink(uri=f"{tmp_path}/out/", on_existing="merge", shards=shards)
    Path(sink.uri).mkdir()
    ids: list[Any] = [*range(20)]
    for _ in range(2):
        staged = {}
        for shard in range(shards):
            rows = [key for key in ids if shard_of({"id": key}, ("id",), shards) == shard]
            staged[shard] = write(tmp_path / f"staging/{shard}.jsonl", rows)
        merged = publish(sink, COLUMNS, staged, f"{tmp_path}/staging/")
        ids = [7.0, 8.0, 30.0]
    found = [json.loads(line)["id"] for uri in merged for line in Path(uri).read_text().splitlines()]
    assert sorted(map(repr, found)) == sorted([*map(repr, set(range(20)) - {7, 8}), "7.0", "8.0", "30.0"])


def test_a_row_whose_key_is_answered_as_a_float_leaves_the_dead_letter(tmp_path: Path) -> None:
    failed = write(tmp_path / "out/dead_letter.jsonl", [7, 8])
    new = write(tmp_path / "staging/dead_letter.jsonl", [9.0])
    merged = merge_dead_letter(failed, new, f"{tmp_path}/staging/", COLUMNS, [{"id": 7.0}], "jsonl")
    assert [json.loads(line)["id"] for line in Path(merged).read_text().splitlines()] == [9.0, 8]
