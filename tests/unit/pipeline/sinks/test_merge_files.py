from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.sinks.merge_files import publish
from airflow_provider_llmbeam.spec.sink import FilesSink

COLUMNS = OutputColumns(("id",))


def write(path: Path, rows: Iterable[Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"id": key, "answer": "x"}) + "\n" for key in rows))
    return str(path)


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
