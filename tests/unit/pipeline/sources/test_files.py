"""Rows of tables."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.elements import FailedRow
from airflow_provider_llmbeam.pipeline.measure.portions import read_portions
from airflow_provider_llmbeam.pipeline.sources import files
from airflow_provider_llmbeam.pipeline.sources.files import (
    RowFormat,
    _rows,
    avro_blocks,
    parse_avro,
    parse_csv,
    parse_table,
)
from tests.hostile import examples

ID = frozenset({"id"})
#: Columns of two rows, with values that cannot be read.
BAD = {
    "list": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
    "inner": pa.array([{"a": [1.0]}, {"a": None}], pa.struct({"a": pa.list_(pa.float32(), 1)})),
    "day": pa.array([10**7, 1], pa.int32()).view(pa.date32()),
    "text": pa.array([b"a", b"\xff"]).view(pa.string()),
    "time": pa.array([2**60, None], pa.timestamp("us")),
    "zone": pa.array([1, None], pa.timestamp("us", "Mars/Base")),
}


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


@pytest.mark.fuzz
@examples(0.3)
@given(st.lists(st.sampled_from([*BAD]), min_size=1, max_size=4))
def test_columns_of_parquet_that_nobody_uses_spoil_nothing(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    columns = [pa.array([1, 2]), *(BAD[name] for name in names)]
    pq.write_table(pa.table(columns, names=["id", *names]), path)
    how = RowFormat("parquet", used=ID)
    assert [row["id"] for row in _rows((str(path), 0), how)] == [1, 2]
    _, portions = read_portions(str(path), how, 2**20)
    assert [row["id"] for portion in portions for row in portion.rows] == [1, 2]


@pytest.mark.parametrize("name", [*BAD])
def test_a_used_column_of_parquet_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"id": [1, 2], name: BAD[name]}), tmp_path / "rows.parquet")
    for used in (None, frozenset({"id", name})):
        try:
            found = [*_rows((f"{tmp_path}/rows.parquet", 0), RowFormat("parquet", used=used))]
        except JobSpecError as error:
            message = str(error)
        else:
            (message,) = (row.failure.message for row in found if isinstance(row, FailedRow))
        assert f"column {name!r}" in message
        assert " cannot be read: " in message


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_time_with_nanoseconds_is_text_in_iso_8601(zone: str | None) -> None:
    times = pa.array([1_735_707_600_000_000_001, 1_735_707_600_000_001_000, None], pa.timestamp("ns", zone))
    first, second, third = (row["at"] for row in parse_table(pa.table({"at": times})))
    assert first == f"2025-01-01T05:00:00.000000001{'+00:00' if zone else ''}"
    assert second == datetime(2025, 1, 1, 5, 0, 0, 1, UTC if zone else None)
    assert type(second) is datetime
    assert third is None


def avro(times: list[int]) -> io.BytesIO:
    logical = {"type": "long", "logicalType": "timestamp-micros"}
    fields = [{"name": "id", "type": "long"}, {"name": "at", "type": logical}]
    file = io.BytesIO()
    fastavro.writer(
        file,
        {"type": "record", "name": "r", "fields": fields},
        [{"id": number, "at": time} for number, time in enumerate(times)],
    )
    file.seek(0)
    return file


@pytest.mark.fuzz
@given(st.lists(st.sampled_from([0, 2**60]), max_size=8))
def test_fields_of_avro_that_nobody_uses_spoil_nothing(times: list[int]) -> None:
    assert [row["id"] for row in parse_avro(avro(times), RowFormat("avro", used=ID))] == [*range(len(times))]


@pytest.mark.parametrize("used", [None, frozenset({"id", "at"})])
def test_a_used_field_of_avro_that_cannot_be_read_ends_the_job_with_a_sentence(used: Any) -> None:
    with pytest.raises(JobSpecError, match=r"an Avro file cannot be read: date value out of range\. Nothing was"):
        list(parse_avro(avro([0, 2**60]), RowFormat("avro", used=used)))


def csv_rows(text: str, *used: str) -> list[Any]:
    how = RowFormat("csv", used=frozenset(used) or None)
    return list(parse_csv(io.StringIO(text, newline=""), how))


@pytest.mark.parametrize("text", ["id,a,,\n1,b,,\n2,c,,x\n", "id,a\n1,b,,\n,,,\n2,c, ,\n"])
def test_what_a_spreadsheet_leaves_around_its_rows_is_not_read(text: str) -> None:
    assert csv_rows(text) == [{"id": "1", "a": "b"}, {"id": "2", "a": "c"}]


def test_a_column_that_is_there_twice_is_an_error_only_if_it_is_used() -> None:
    assert [row["id"] for row in csv_rows("id,note,note\n1,a,b\n", "id")] == ["1"]
    for used in (("id", "note"), ()):
        with pytest.raises(JobSpecError, match="names column 'note' twice"):
            csv_rows("id,note,note\n1,a,b\n", *used)
    table = pa.table([pa.array([1]), pa.array(["a"]), pa.array(["b"])], names=["id", "note", "note"])
    assert [row["id"] for row in parse_table(table, RowFormat("parquet", used=ID))] == [1]


@given(
    rows=st.lists(st.integers(0, 2**40), max_size=60),
    interval=st.integers(1, 200),
    part=st.integers(1, 400),
)
@examples(50)
def test_each_row_of_an_avro_file_is_in_one_of_its_parts(rows: list[int], interval: int, part: int) -> None:
    file = io.BytesIO()
    schema = {"type": "record", "name": "row", "fields": [{"name": "id", "type": "long"}]}
    fastavro.writer(file, schema, [{"id": number} for number in rows], sync_interval=interval)
    parts = [avro_blocks(file, start, part) for start in range(0, len(file.getvalue()), part)]
    read = [
        row["id"] for header, blocks in parts for row in parse_avro(io.BytesIO(header + blocks), RowFormat("avro"))
    ]
    assert read == rows


def test_rows_of_empty_cells_are_counted_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (file := tmp_path / "a.csv").write_text("id,text\n,\n1,a\n, \n")
    assert [*_rows((str(file), 0), RowFormat("csv"))] == [{"id": "1", "text": "a"}]
    assert "2 rows with empty cells alone" in caplog.text


LARGE = 1001


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_avro(path: Path, rows: list[dict[str, Any]]) -> None:
    kind: Any = {str: "string", bytes: "bytes", list: {"type": "array", "items": "string"}}
    fields = [{"name": "id", "type": "long"}, {"name": "a", "type": kind[type(rows[0]["a"])]}]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "r", "fields": fields}, rows, codec="deflate")


@pytest.mark.parametrize(("file_format", "write"), [("parquet", write_parquet), ("avro", write_avro)])
@pytest.mark.parametrize(
    ("large", "small"),
    [("x" * LARGE, "x"), (b"\xff" * LARGE, b"\xff"), (["x" * (LARGE // 2)] * 3, ["x"])],
    ids=["text", "bytes", "list"],
)
def test_a_cell_that_is_too_large_fails_its_row_alone_and_only_if_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: Any, write: Any, large: Any, small: Any
) -> None:
    monkeypatch.setattr(files, "MAX_ROW_SIZE", LARGE - 1)
    write(tmp_path / "rows", [{"id": 1, "a": small}, {"id": 2, "a": large}, {"id": 3, "a": small}])
    part = (f"{tmp_path}/rows", 0)
    first, failed, last = _rows(part, RowFormat(file_format))
    assert (first, last) == ({"id": 1, "a": small}, {"id": 3, "a": small})
    assert isinstance(failed, FailedRow)
    assert failed.row == {"llmbeam_raw": '{"id": 2}'}
    assert failed.failure.message.startswith("column 'a' cannot be read: ")
    assert failed.failure.message.endswith(" bytes or characters; at most 1,000 are read")
    assert [row["id"] for row in _rows(part, RowFormat(file_format, used=ID))] == [1, 2, 3]
