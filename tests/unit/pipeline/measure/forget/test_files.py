from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.measure.forget.files import read_rows, remove_lines, remove_rows

numbers = st.lists(st.integers(0, 9), max_size=20)


@given(numbers, st.sets(st.integers(0, 9), max_size=4))
def test_other_read_rows_a_parquet_file_keep_their_values_types_and_order(
    tmp_path_factory, numbers: list[int], gone: set[int]
) -> None:
    directory: Path = tmp_path_factory.mktemp("rows")
    path = directory / "answers.parquet"
    schema = pa.schema([("id", pa.int64()), ("answer", pa.struct([("a", pa.list_(pa.float32()))]))])
    rows = [{"id": number, "answer": {"a": [0.5, number]}} for number in numbers]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=3)
    count = remove_rows(str(path), f"{directory}/", lambda row: row["id"] in gone, dry_run=False)
    assert count == sum(number in gone for number in numbers)
    assert pq.read_table(path).schema.equals(schema)
    assert pq.read_table(path).to_pylist() == [row for row in rows if row["id"] not in gone]
    assert list(directory.iterdir()) == [path]


def test_other_lines_keep_their_bytes_and_a_file_without_lines_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "segment.jsonl"
    path.write_bytes(b'{"a":1 }\n{"b": 2}\n{"a":3, half')
    assert remove_lines(str(path), lambda line: b'"b"' in line, dry_run=True) == 1
    assert remove_lines(str(path), lambda line: b'"b"' in line, dry_run=False) == 1
    assert path.read_bytes() == b'{"a":1 }\n{"a":3, half'
    assert remove_lines(str(path), lambda line: True, dry_run=False) == 2
    assert not path.exists()


def test_lines_that_are_no_rows_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('no json\n[1]\n{"id": 1}\n{"id": 2}\n')
    assert list(read_rows(str(path))) == [{"id": 1}, {"id": 2}]
    assert remove_rows(str(path), f"{tmp_path}/", lambda row: row["id"] == 1, dry_run=False, is_private=True) == 1
    assert path.read_text() == 'no json\n[1]\n{"id": 2}\n'
    assert path.stat().st_mode & 0o777 == 0o600
