from __future__ import annotations

import datetime
import io
import json
import math
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, failed_row
from airflow_provider_llmbeam.pipeline.records import (
    answer_record,
    encode_key,
    encode_record,
    failed_record,
    warn_of_replaced,
    with_types,
)
from airflow_provider_llmbeam.pipeline.sinks.parquet import _ROW_GROUP, write_parquet
from airflow_provider_llmbeam.pipeline.sinks.postgres import encoder_of
from airflow_provider_llmbeam.pipeline.sources.bigquery import json_values
from airflow_provider_llmbeam.pipeline.sources.files import parse_json_line, parse_table
from airflow_provider_llmbeam.pipeline.staged_bytes import bytes_of, without_bytes
from airflow_provider_llmbeam.spec.characters import valid_value
from airflow_provider_llmbeam.spec.prompt.answer_type import answer_type
from airflow_provider_llmbeam.spec.sink import OUTPUT_COLUMNS
from tests.hostile import examples
from tests.outcomes import completion


@pytest.mark.parametrize("value", ["!", "", 5, None, {}, ["aGk="], {"llmbeam_bytes": "aGk="}])
def test_an_object_of_the_source_with_the_name_of_staged_bytes_is_an_object(value: Any) -> None:
    found = {"llmbeam_bytes": value}
    assert value == "" or bytes_of(found) is None
    assert without_bytes(found) == ("" if value == "" else found)


@pytest.mark.parametrize("found", ["x", None, 5, {}, {"kind": []}, {"types": {"id": "bytes"}}])
def test_a_column_with_the_name_of_the_reason_that_no_job_wrote_is_replaced_and_the_log_says_so(
    caplog, found
) -> None:
    warn_of_replaced.cache_clear()
    row = {"id": "aGk=", "llmbeam_error": found}
    assert with_types(row) is row
    for _ in range(2):
        assert failed_record(failed_row(row, "template_error", "no"))["llmbeam_error"]["kind"] == "template_error"
    (logged,) = caplog.messages
    assert "a column 'llmbeam_error' that no job wrote" in logged


def record(answer: Any = "Hi.", **key: Any) -> dict[str, Any]:
    return {
        **key,
        "answer": answer,
        "llmbeam_origin": "fresh",
        "llmbeam_model": "m",
        "llmbeam_fingerprint": "f",
        "llmbeam_finish_reason": "stop",
        "llmbeam_input_tokens": 1,
        "llmbeam_output_tokens": 2,
        "llmbeam_attempts": 1,
        "llmbeam_latency_seconds": 0.25,
    }


def parquet(*records: dict[str, Any], key: tuple[str, ...] = ("id",)) -> pa.Table:
    file = io.BytesIO()
    write_parquet(iter([encode_record(found) for found in records]), file, OutputColumns(key))
    return pq.read_table(io.BytesIO(file.getvalue()))


def test_an_answered_row_has_its_key_and_the_columns_for_an_audit() -> None:
    answered = AnsweredRow(
        {"id": 7, "part": "a", "text": "x"}, "f" * 64, completion(latency_seconds=1 / 3), "fresh"
    )
    assert answer_record(answered, OutputColumns(("part", "id"))) == {
        "part": "a",
        "id": 7,
        "answer": "Hi.",
        "llmbeam_origin": "fresh",
        "llmbeam_model": "m-001",
        "llmbeam_fingerprint": "f" * 64,
        "llmbeam_finish_reason": "stop",
        "llmbeam_input_tokens": 10,
        "llmbeam_output_tokens": 3,
        "llmbeam_attempts": 1,
        "llmbeam_latency_seconds": 0.3333,
    }


def test_the_output_columns_are_those_that_a_key_cannot_have() -> None:
    assert tuple(answer_record(AnsweredRow({}, "f", completion(), "fresh"), OutputColumns(()))) == OUTPUT_COLUMNS


@pytest.mark.parametrize("value", [{"a": 1}, [], 0, False, ""])
def test_a_structured_answer_is_its_value(value: Any) -> None:
    answered = AnsweredRow({}, "f", completion(text=json.dumps(value), parsed=value), "fresh")
    assert answer_record(answered, OutputColumns(()))["answer"] == value


def test_the_record_of_a_failed_row_is_the_row_and_its_error() -> None:
    known = {"http_status": 200, "category": "SAFETY", "request_id": "r-1"}
    failure = Failure(kind="blocked", message="no", attempts=1, tokens=Tokens(5), **known)
    assert failed_record(FailedRow({"id": 1, "text": "a"}, failure)) == {
        "id": 1,
        "text": "a",
        "llmbeam_error": {
            "kind": "blocked",
            "message": "no",
            "category": "SAFETY",
            "http_status": 200,
            "request_id": "r-1",
            "attempts": 1,
            "origin": "fresh",
        },
    }


def test_a_failed_row_can_be_read_again_as_a_row() -> None:
    row = {"id": 1, "text": "ä\u2028\n", "more": {"a": [None]}}
    (again,) = parse_json_line(
        encode_record(failed_record(FailedRow(row, Failure(kind="timeout", message="slow"))))
    )
    assert isinstance(again, dict)
    assert again.pop("llmbeam_error")["kind"] == "timeout"
    assert again == row


def test_values_without_a_json_type_are_read_again_from_a_dead_letter_with_their_types() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 60, tzinfo=datetime.UTC)
    values = [at, at.date(), at.time(), at.replace(tzinfo=None), Decimal("-1.50"), Decimal("0E-9"), b"\xff\0"]
    values += [UUID(int=5), datetime.timedelta(-1, 5, 6), datetime.timedelta(1), datetime.timedelta(0, 86399)]
    values += [at.astimezone(ZoneInfo("Europe/Berlin")), at.astimezone(ZoneInfo("UTC"))]
    values += [float("inf"), float("-inf")]
    row = {"id": values[1], "each": values, "one": [None, 1, {"in": values[4], "text": "2026-01-02"}], "none": []}
    failed = failed_record(FailedRow(row, Failure(kind="timeout", message="slow")))
    again = with_types(json.loads(encode_record(failed)))
    assert repr(again) == repr(failed)
    assert encode_key(again, ("id",)) == encode_key(json.loads(encode_record(failed)), ("id",))
    assert failed_record(FailedRow(again, Failure(kind="timeout", message="slow"))) == failed, "if it fails again"


@pytest.mark.parametrize(
    "types",
    [
        "date",
        {"text": "date"},
        {"text": "decimal", "more": "date"},
        {"text": "datetime", "more": ["date"]},
        {"text": ["bytes"], "more": {"in": ["bytes"]}},
        {"text": "int", "more": {"in": {}}},
        *({"text": kind} for kind in ("timedelta", "uuid", "float", "date UTC", "pandas.DataFrame")),
    ],
)
def test_a_row_whose_types_were_changed_keeps_its_texts(types: Any) -> None:
    row = {"text": "1E+999999999", "more": {"in": ["no"]}, "llmbeam_error": {"types": types}}
    assert with_types(row) == row


@pytest.mark.parametrize("types", ["datetime Nowhere/Here", "datetime ../UTC", "datetime Europe", "date UTC"])
def test_a_time_in_a_zone_that_does_not_exist_keeps_its_text(types: str) -> None:
    row = {"at": "2026-01-02", "llmbeam_error": {"types": {"at": types}}}
    assert with_types(row) == row


@pytest.mark.parametrize("error", [None, "2026", ["types"], {"kind": "timeout"}])
def test_a_row_that_names_no_types_is_as_it_was_read(error: Any) -> None:
    assert with_types(row := {"day": "2026-01-02", "llmbeam_error": error}) is row


def test_half_a_surrogate_pair_is_written_as_a_character_that_any_reader_accepts() -> None:
    line = encode_record({"id": 1, "answer": "cut \ud83d", "\ude00": ["\ud83d\ude00", "ä"]})
    assert json.loads(line.decode()) == {"id": 1, "answer": "cut \ufffd", "\ufffd": ["\N{GRINNING FACE}", "ä"]}


def test_a_row_that_fails_again_has_the_newer_error() -> None:
    first = failed_record(FailedRow({"id": 1}, Failure(kind="timeout", message="slow")))
    second = failed_record(FailedRow(first, Failure(kind="blocked", message="no")))
    assert second["llmbeam_error"]["kind"] == "blocked"
    assert second.keys() == first.keys()


def test_a_record_is_one_line_and_values_without_a_json_type_become_text() -> None:
    row = {"day": datetime.date(2026, 11, 20), "sum": Decimal("1.10"), "text": "ä\n漢"}
    line = encode_record(row)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"day": "2026-11-20", "sum": "1.10", "text": "ä\n漢"}
    assert "ä".encode() in line


def test_bytes_are_base64_in_a_record_as_in_the_rows_of_bigquery() -> None:
    record = {"id": b"\xff\x00", "inner": [b"ab"]}
    assert json.loads(encode_record(record)) == {"id": "/wA=", "inner": ["YWI="]} == json_values(record)
    assert encode_key(record, ("id",)) == b'{"id": "/wA="}\n', "the key of the record when it is read again"


_floats = st.floats(allow_nan=False, allow_infinity=False)
_numbers = st.integers() | _floats | _floats.map(np.float64)
_json_values = st.recursive(
    st.none()
    | st.booleans()
    | _numbers
    | st.text(max_size=5)
    | st.dates()
    | st.datetimes()
    | st.decimals()
    | st.uuids(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), _json_values, max_size=4))
def test_every_record_is_encoded_as_the_standard_library_does(record: dict[str, Any]) -> None:
    line = encode_record(record)
    assert repr(json.loads(line)) == repr(json.loads(json.dumps(record, default=str)))
    assert line.count(b"\n") == 1


def test_infinity_is_kept_for_parquet_and_the_next_read() -> None:
    lines = [
        encode_record({"id": number, "score": score}) for number, score in enumerate((math.inf, -math.inf, 1.5))
    ]
    assert lines[1] == b'{"id":1,"score":"-Infinity"}\n'
    columns = OutputColumns(("id",), ("score",))
    answered = [encode_record({**json.loads(line), **dict.fromkeys(columns.outputs)}) for line in lines]
    file = io.BytesIO()
    write_parquet(answered, file, columns)
    assert pq.read_table(file)["score"].to_pylist() == [math.inf, -math.inf, 1.5]


def test_the_encoded_key_never_changes_between_versions() -> None:
    """Vector databases name rows by its digest: with another one all rows would be inserted again."""
    row = {"id": 7, "part": "ä", "day": datetime.date(2026, 1, 2), "text": "x"}
    assert encode_key(row, ("id", "part", "day")) == '{"id": 7, "part": "ä", "day": "2026-01-02"}\n'.encode()


FINITE = st.floats(allow_nan=False, allow_infinity=False)
KEY_VALUES = st.none() | st.booleans() | st.integers() | FINITE | st.text() | st.dates() | st.decimals()


@given(
    st.dictionaries(st.text(max_size=5), KEY_VALUES, min_size=1, max_size=3), st.text("\ud83d\ude00x", max_size=3)
)
def test_every_key_is_encoded_as_the_standard_library_does(row: dict[str, Any], halves: str) -> None:
    row |= {"halves": halves}
    encoded = json.dumps(row, ensure_ascii=False, default=str).encode("utf-16-le", "surrogatepass")
    assert encode_key(row, tuple(row)) == encoded.decode("utf-16-le", "replace").encode() + b"\n"


def test_a_key_that_is_no_finite_number_is_encoded_as_json_that_every_reader_takes() -> None:
    """No row has such a key, but `forget` takes any; JSON has no `NaN` (RFC 8259, section 6)."""
    row = {"a": math.nan, "b": [math.inf]}
    assert encode_key(row, ("a", "b")) == b'{"a": null, "b": ["Infinity"]}\n'


@pytest.mark.parametrize(
    ("keys", "kind", "expected"),
    [
        ([1, -2, 2**63 - 1], pa.int64(), [1, -2, 2**63 - 1]),
        ([1.5, 2.0], pa.float64(), [1.5, 2.0]),
        ([1, 2.5], pa.float64(), [1.0, 2.5]),
        ([True, False], pa.bool_(), [True, False]),
        (["a", "ä漢😀", ""], pa.string(), ["a", "ä漢😀", ""]),
        ([1, "a"], pa.string(), ["1", "a"]),
        ([1, True], pa.string(), ["1", "true"]),
        ([{"a": "ä"}, [1]], pa.string(), ['{"a": "ä"}', "[1]"]),
    ],
    ids=["int", "float", "int and float", "bool", "str", "int and str", "int and bool", "nested"],
)
def test_a_key_column_has_the_type_of_its_values_else_text(
    keys: list[Any], kind: pa.DataType, expected: list[Any]
) -> None:
    table = parquet(*(record(id=key) for key in keys))
    assert table.schema.field("id").type == kind
    assert table["id"].to_pylist() == expected


@pytest.mark.parametrize("keys", [[2**63], [-(2**63) - 1], [2**64, "a"], [2**53 + 1, 0.5]])
def test_a_number_too_large_for_its_column_is_written_as_text(keys: list[Any]) -> None:
    """All answers are paid for at this point, and every retry would fail in the same way."""
    table = parquet(*(record(id=key) for key in keys))
    assert table["id"].to_pylist() == [str(key) for key in keys]


@pytest.mark.parametrize("answer", ["cut \ud83d", {"a": "cut \ud83d"}])
def test_a_lone_surrogate_in_an_answer_does_not_fail_the_job(answer: Any) -> None:
    """An answer truncated at `max_output_tokens` can end so; all answers are paid for at this point."""
    assert "cut " in parquet(record(answer=answer, id=1))["answer"].to_pylist()[0]


def test_a_structured_answer_is_json_text_in_parquet() -> None:
    table = parquet(record(answer={"a": ["ä"]}, id=1), record(answer="text", id=2), record(answer=3, id=3))
    assert table["answer"].to_pylist() == ['{"a": ["ä"]}', "text", "3"]


def test_the_columns_of_a_parquet_file_are_the_key_and_the_output() -> None:
    table = parquet(record(part="b", id=1), key=("part", "id"))
    assert tuple(table.column_names) == ("part", "id", *OUTPUT_COLUMNS)
    assert table["llmbeam_input_tokens"].type == pa.int64()
    assert table["llmbeam_latency_seconds"].to_pylist() == [0.25]


def test_one_answer_that_does_not_fit_makes_its_column_json_text() -> None:
    """All answers are paid for at this point, and every retry would fail in the same way."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    columns = OutputColumns(("id",), answer=answer_type(schema))
    file = io.BytesIO()
    found = [record(answer={"a": value}, id=value) for value in (1, 2**70)]
    write_parquet(map(encode_record, found), file, columns)
    table = pq.read_table(io.BytesIO(file.getvalue()))
    assert [json.loads(text) for text in table["answer"].to_pylist()] == [{"a": 1}, {"a": 2**70}]


def test_a_parquet_file_without_rows_has_its_columns() -> None:
    table = parquet()
    assert table.num_rows == 0
    assert tuple(table.column_names) == ("id", *OUTPUT_COLUMNS)


def test_more_rows_than_a_row_group_are_all_written() -> None:
    table = parquet(*(record(id=number) for number in range(_ROW_GROUP + 1)))
    assert table["id"].to_pylist() == list(range(_ROW_GROUP + 1))


@given(st.lists(st.tuples(st.text(max_size=10), st.text(max_size=10)), max_size=5))
@examples(0.3)
def test_any_text_is_written_unchanged(rows: list[tuple[str, str]]) -> None:
    table = parquet(*(record(id=key, answer=answer) for key, answer in rows))
    assert list(zip(table["id"].to_pylist(), table["answer"].to_pylist(), strict=True)) == rows


def strict(text: bytes) -> Any:
    def refused(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refused)


@pytest.mark.fuzz
@given(st.recursive(st.floats() | st.none() | st.text(max_size=2), lambda inner: st.lists(inner, max_size=3)))
def test_a_record_is_json_for_every_reader(value: Any) -> None:
    def expected(found: Any) -> Any:
        if isinstance(found, list):
            return [*map(expected, found)]
        if isinstance(found, float) and not math.isfinite(found):
            return None if math.isnan(found) else f"{'-' * (found < 0)}Infinity"
        return found

    assert strict(encode_record({"x": value, "date": datetime.date(2026, 1, 2), "no": None})) == {
        "x": expected(valid_value(value)),
        "date": "2026-01-02",
        "no": None,
    }


@pytest.mark.fuzz
@given(
    st.lists(
        st.binary(max_size=6) | st.sampled_from([b"text", b"hello", b"\\x41", b"AAE="]), min_size=1, max_size=4
    ),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)
def test_the_bytes_of_a_source_are_those_of_a_column_of_bytes(contents: list[bytes], kind: pa.DataType) -> None:
    """What they look like as text decides nothing; a column of texts has them as text or as base64."""
    columns = OutputColumns((), ("b",), keeps_bytes=True)
    rows = [*parse_table(pa.table({"b": pa.array(contents, kind)}))]
    dead = [
        with_types(json.loads(encode_record(failed_record(failed_row(row, "timeout", "slow"))))) for row in rows
    ]
    lines = [
        encode_record(answer_record(AnsweredRow(row, "f", completion(), "fresh"), columns)) for row in rows + dead
    ]
    staged = [json.loads(line)["b"] for line in lines]
    assert [encoder_of("bytea")(value) for value in staged] == [f"\\x{each.hex()}" for each in contents * 2]
    write_parquet(lines, file := io.BytesIO(), columns)
    assert pq.read_table(file)["b"].to_pylist() == contents * 2
    texts = [json.loads(encode_record({"b": row["b"]}))["b"] for row in rows]
    assert [encoder_of("text")(value) for value in staged] == [text.replace("\0", "\ufffd") for text in texts] * 2
    published = OutputColumns((), ("b",))
    for row, text in zip(rows, texts, strict=True):
        line = encode_record(answer_record(AnsweredRow(row, "f", completion(), "fresh"), published))
        assert json.loads(line)["b"] == text
