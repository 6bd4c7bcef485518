from __future__ import annotations

import csv
import errno
import io
import json
import pickle
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError, SourceMissingError
from airflow_provider_llmbeam.pipeline.elements import FailedRow
from airflow_provider_llmbeam.pipeline.prompt_of_row import with_key
from airflow_provider_llmbeam.pipeline.records import encode_record, failed_record
from airflow_provider_llmbeam.pipeline.sources import files
from airflow_provider_llmbeam.pipeline.sources.check_files import check_source
from airflow_provider_llmbeam.pipeline.sources.files import (
    parse_csv,
    parse_json_line,
    parse_line,
    parse_table,
)
from airflow_provider_llmbeam.pipeline.sources.lines import Line

BOM = b"\xef\xbb\xbf"
AVRO_SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
cells = st.text("ab ,\"'\r\n\t;äß漢😀\0", max_size=8)


def read_line(line: bytes) -> Any:
    (found,) = parse_json_line(line)
    return found


def read_csv(text: str) -> list[Any]:
    return list(parse_csv(io.StringIO(text, newline="")))


@pytest.mark.parametrize("line", [b'{"id": 1}', b' {"id": 1}\r\n', BOM + b'{"id": 1}'])
def test_a_line_is_a_row(line: bytes) -> None:
    assert read_line(line) == {"id": 1}


@pytest.mark.parametrize("line", [b"", b"  \r\n", b"\t", BOM, BOM + b"\n"])
def test_a_blank_line_is_no_row(line: bytes) -> None:
    assert list(parse_json_line(line)) == []


@pytest.mark.fuzz
@given(st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(max_size=9)))
def test_a_row_round_trips_through_a_json_line(row: dict[str, Any]) -> None:
    assert read_line(json.dumps(row).encode()) == row
    assert read_line(json.dumps(row, ensure_ascii=False).encode()) == row


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"[1]", "list"),
        (b"3", "int"),
        (b'"a"', "str"),
        (b"null", "NoneType"),
        (b"true", "bool"),
        (b"1.5", "float"),
    ],
)
def test_json_that_is_no_object_is_no_row(line: bytes, kind: str) -> None:
    found = read_line(line)
    assert found.failure.kind == "unreadable_row"
    assert found.failure.message == f"a JSON {kind}, not an object"
    assert found.row == {"llmbeam_raw": line.decode()}


@pytest.mark.parametrize(
    "line",
    [b"{", b"id,text", b"{'id': 1}", b"\x89PNG\r\n\x1a\n", b"\x00\x00\x00\x00", b"\xff\xfe\xfd", b"1" * 5000],
    ids=range(7),
)
def test_a_line_that_is_not_json_fails_with_its_text(line: bytes) -> None:
    found = read_line(line)
    assert isinstance(found, FailedRow)
    assert (found.failure.kind, found.failure.attempts) == ("unreadable_row", 0)
    assert found.failure.message.startswith(("not JSON: ", "not UTF-8, as JSON is: "))
    assert found.row == {"llmbeam_raw": line.decode("utf-8", "backslashreplace")}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
deep = st.integers(0, 2000).map(lambda levels: b'{"a":' + b"[" * levels + b"]" * levels + b"}")
escaped = st.lists(st.sampled_from([r"\ud83d", r"\ude00", "a", r"\n", r"\u0000", "ä"])).map(
    lambda parts: f'{{"a": "{"".join(parts)}"}}'.encode()
)
cut = st.tuples(json_values, st.integers(0, 40)).map(lambda parts: json.dumps(parts[0]).encode()[: parts[1]])


@pytest.mark.fuzz
@given(st.binary(min_size=1) | json_values.map(lambda value: json.dumps(value).encode()) | deep | escaped | cut)
def test_any_line_is_one_row_or_one_failed_row_that_can_be_pickled_and_written(line: bytes) -> None:
    found = list(parse_json_line(line))
    assert len(found) == bool(line.removeprefix(BOM).strip())
    for row in found:
        keyed = with_key(row, ("a",))
        assert isinstance(keyed, FailedRow) or keyed is row
        assert pickle.loads(pickle.dumps(keyed)) is not None
        record = failed_record(keyed) if isinstance(keyed, FailedRow) else keyed
        assert json.loads(encode_record(record).decode())


def test_a_line_that_is_too_long_is_shown_in_part() -> None:
    (found,) = parse_line(Line(0, 2**27, b"x" * 1000))
    assert found.failure.message == "a line of 134,217,728 bytes; at most 67,108,864 are read"
    assert found.row == {"llmbeam_raw": "x" * 1000}


@pytest.mark.parametrize("levels", [101, 700, 980])
def test_a_line_that_is_nested_too_deep_is_unreadable(levels: int) -> None:
    """Beam could not pickle it, and the whole bundle failed."""
    line = b'{"a": ' + b"[" * levels + b"]" * levels + b"}"
    found = read_line(line)
    assert found.failure.kind == "unreadable_row"
    assert found.row == {"llmbeam_raw": line.decode()}


def test_a_table_with_a_value_that_python_cannot_represent_has_one_failed_row() -> None:
    table = pa.table({"id": [1, 2], "text": pa.array([b"a", b"\xff"]).view(pa.string())})
    good, bad = parse_table(table)
    assert good == {"id": 1, "text": "a"}
    assert bad.failure.kind == "unreadable_row"
    assert bad.failure.message.startswith("column 'text' cannot be read: 'utf-8' codec can't decode byte 0xff")
    assert bad.row == {"llmbeam_raw": '{"id": 2}'}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_text_in_a_binary_column_of_a_table_is_read_as_text(kind: pa.DataType) -> None:
    cells = ["Grüße".encode(), None, b"\xff\xd8"]
    rows = list(parse_table(pa.table({"id": [1, 2, 3], "text": pa.array(cells, kind)})))
    assert [row["text"] for row in rows] == ["Grüße", None, b"\xff\xd8"]


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a":' * 100_000])
def test_a_line_of_nothing_but_brackets_is_unreadable(line: bytes) -> None:
    """The parser fails with `RecursionError`, not `ValueError`; one such line would end the job."""
    assert read_line(line).failure.kind == "unreadable_row"


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    assert read_line(rb'{"a": "cut \ud83d", "b": "\ud83d\ude00", "c": "\\ud83d"}') == {
        "a": "cut \N{REPLACEMENT CHARACTER}",
        "b": "😀",
        "c": "\\ud83d",
    }


def test_a_lone_surrogate_encoded_in_bytes_is_not_passed_on_either() -> None:
    """Python's JSON parser accepts bytes that are not UTF-8; neither Beam nor a server can encode the result."""
    found = read_line(b'{"a": "cut \xed\xa0\xbd"}')
    assert isinstance(found, FailedRow) or found["a"].encode()


def test_a_csv_is_read_by_its_header_and_every_value_is_text() -> None:
    assert read_csv("id,text\r\n1,a\r\n2,\n") == [{"id": "1", "text": "a"}, {"id": "2", "text": ""}]


def test_a_csv_without_rows_has_none() -> None:
    assert read_csv("") == read_csv("id,text\n") == []


@pytest.mark.fuzz
@given(st.lists(st.tuples(cells, cells), max_size=6))
def test_a_table_round_trips_through_csv(rows: list[tuple[str, str]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows([("first", "second"), *rows])
    filled = [row for row in rows if "".join(row).strip()]
    assert [(row["first"], row["second"]) for row in read_csv(text.getvalue())] == filled


def test_a_quoted_cell_may_hold_lines_and_commas() -> None:
    assert read_csv('id,text\n1,"one\ntwo, ""three"""\n') == [{"id": "1", "text": 'one\ntwo, "three"'}]


def test_a_cell_can_be_longer_than_the_default_limit_of_the_csv_module() -> None:
    assert len(read_csv(f"id,text\n1,{'x' * 1_000_000}\n")[0]["text"]) == 1_000_000


@pytest.mark.parametrize("line", ["2", "2,a,b", "2,a,,b"])
def test_a_line_with_another_number_of_cells_fails_alone(line: str) -> None:
    first, odd, last = read_csv(f"id,text\n1,a\n{line}\n3,c\n")
    assert (first, last) == ({"id": "1", "text": "a"}, {"id": "3", "text": "c"})
    assert odd.failure.kind == "unreadable_row"
    assert odd.failure.message == "line 3 does not have the 2 cells of the header"
    assert '"2"' in odd.row["llmbeam_raw"]


def test_a_column_without_a_name_is_a_column() -> None:
    """Pandas writes its index without a column name by default."""
    assert [row.get("text") for row in read_csv(",text\n0,a\n1,b\n") if isinstance(row, dict)] == ["a", "b"]


@pytest.mark.parametrize("line", ['2,"b"x', '2,"b" ,'])
def test_a_malformed_line_does_not_fail_the_rows_after_it(line: str) -> None:
    found = read_csv(f"id,text\n1,a\n{line}\n3,c\n4,d\n")
    assert [row["id"] for row in found if isinstance(row, dict)] == ["1", "3", "4"]
    (odd,) = [row for row in found if isinstance(row, FailedRow)]
    assert odd.failure.message.startswith("not CSV near line ")


def test_an_unclosed_quote_is_a_failed_row_with_all_lines_after_it() -> None:
    """Those lines may be a text with commas: sent as rows, they would be paid for."""
    first, last = read_csv('id,text\n1,a\n2,"b\n3,c\n')
    assert first == {"id": "1", "text": "a"}
    assert last.failure.kind == "unreadable_row"
    assert last.failure.message == "not CSV near line 3 (up to line 4): unexpected end of data"
    assert last.row == {"llmbeam_raw": '2,"b\n3,c\n'}


def test_a_malformed_row_keeps_its_text_and_the_number_of_its_first_line() -> None:
    _, odd, _ = read_csv('id,text\n1,"a\nb"\n2,"c\nd"x\n3,e\n')
    assert odd.failure.message == """not CSV near line 4 (up to line 5): ',' expected after '"'"""
    assert odd.row == {"llmbeam_raw": '2,"c\nd"x\n'}


@pytest.mark.parametrize("line", ["2," + "x" * 5000, "x" * 5000, '2,"' + "x" * 5000 + '"'], ids=range(3))
def test_a_csv_row_that_is_too_long_fails_alone(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ROW_SIZE", 4000)
    first, odd, last = read_csv(f"id,text\n1,a\n{line}\n3,c\n")
    assert (first, last) == ({"id": "1", "text": "a"}, {"id": "3", "text": "c"})
    assert odd.failure.message == f"not CSV near line 3: {len(line) + 1:,} characters; at most 4,000 are read"
    assert odd.row["llmbeam_raw"] == line[:1000]


def test_the_rest_of_a_long_quoted_csv_cell_is_not_read_as_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files, "MAX_ROW_SIZE", 4000)
    text = '2,"' + "x,y\n" * 2500
    first, odd = read_csv(f"id,text\n1,a\n{text}")
    assert first == {"id": "1", "text": "a"}
    assert odd.failure.message == (
        "not CSV near line 3 (up to line 2502): 10,003 characters; at most 4,000 are read"
    )
    assert odd.row["llmbeam_raw"] == text[:1000]


@pytest.mark.fuzz
@given(st.text('ab,"\r\n\0', max_size=40))
def test_any_csv_is_rows_and_failed_rows_and_each_line_is_in_one(body: str) -> None:
    found = read_csv(f"id,text\n{body}")
    assert all(isinstance(row, FailedRow) or row.keys() == {"id", "text"} for row in found)
    assert len(found) <= len(body.splitlines())


@pytest.mark.parametrize("text", ['id,"text\n1,a\n', '"id"x,text\n1,a\n'])
def test_a_header_that_is_not_csv_stops_the_job_before_anything_is_sent(text: str) -> None:
    with pytest.raises(ValueError, match="the header is not CSV: "):
        read_csv(text)


def test_a_source_that_matches_a_file_is_fine(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    check_source(f"{tmp_path}/*.csv", "csv")


def test_a_source_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobSpecError, match=r"`source\.uri` '.*' matches no file\. Nothing was sent or billed\."):
        check_source(f"{tmp_path}/*.csv", "csv")


def test_a_source_that_matches_nothing_yet_is_retried_if_its_files_may_be_late(tmp_path: Path) -> None:
    sentence = (
        r"matches no file\. `source\.on_missing` is 'retry': a retry looks again\. Nothing was sent or billed\."
    )
    with pytest.raises(SourceMissingError, match=sentence) as caught:
        check_source(f"{tmp_path}/*.csv", "csv", "retry")
    assert caught.value.retryable


@pytest.mark.parametrize("file_format", ["jsonl", "csv", "parquet", "avro"])
def test_a_file_that_this_user_may_not_read_is_refused_before_anything_is_sent(
    file_format: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.{file_format}").write_text("1")

    def opened(path: Path, *args: Any) -> Any:
        if path.stem == "b":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return io.BytesIO()

    monkeypatch.setattr(Path, "open", opened)
    glob, path = f"{tmp_path}/*.{file_format}", f"{tmp_path}/b.{file_format}"
    for uri, which in ((glob, f"'{glob}': '{path}'"), (path, f"'{path}'")):
        with pytest.raises(JobSpecError) as caught:
            check_source(uri, file_format)
        assert str(caught.value) == f"`source.uri` {which}: Permission denied. Nothing was sent or billed."


@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        ("lz4", "lz4 codec is supported but you need to install one of the following libraries: ('lz4',)"),
        ("other", "unrecognized codec: other"),
    ],
)
def test_an_avro_file_with_a_codec_that_is_not_installed_is_refused(
    codec: str, reason: str, tmp_path: Path
) -> None:
    stored = io.BytesIO()
    fastavro.writer(
        stored, {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}, [{"id": 1}]
    )
    name = bytes([2 * len(codec)]) + codec.encode()
    (tmp_path / "a.avro").write_bytes(stored.getvalue().replace(b"\x08null", name))
    with pytest.raises(JobSpecError) as refused:
        check_source(f"{tmp_path}/a.avro", "avro")
    assert str(refused.value) == (
        f"`source.uri`: '{tmp_path}/a.avro' is compressed with codec '{codec}', which cannot be expanded: "
        f"{reason}. Install it here and on the workers, or write the file with codec 'deflate' or 'snappy'. "
        "Nothing was sent or billed."
    )


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_an_avro_file_with_a_codec_that_is_installed_is_accepted(codec: str, tmp_path: Path) -> None:
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, AVRO_SCHEMA, [{"id": 1}], codec=codec)
    check_source(f"{tmp_path}/a.avro", "avro")


def test_a_source_on_an_unknown_filesystem_is_refused() -> None:
    with pytest.raises(JobSpecError, match=r"`source\.uri` 'nope://a/b' cannot be listed: "):
        check_source("nope://a/b", "jsonl")


def test_a_header_that_names_a_column_twice_stops_the_job_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="the header names column 'text' twice"):
        read_csv("id,text,text\n1,a,b\n")
