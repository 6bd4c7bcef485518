"""A message becomes one row, or one failed row with its key."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.elements import FailedRow
from airflow_provider_llmbeam.pipeline.sources.lines import Line
from airflow_provider_llmbeam.pipeline.sources.messages import encode_message, parse_message

KEY = {"kafka_topic": "t", "kafka_partition": 1, "kafka_offset": 2}


def parsed(value, value_format="json"):
    line = encode_message(KEY, value)
    assert line.count(b"\n") == 1
    (row,) = parse_message(Line(0, len(line) - 1, line[:-1]), value_format)
    return row


def test_a_row_has_the_fields_of_the_object_and_what_is_known_of_the_message():
    assert parsed(b'{"text": "a\\nb", "kafka_offset": 99}') == {"text": "a\nb", **KEY}


def test_a_text_is_one_column():
    assert parsed("Grüße,\n東京".encode(), "text") == {"value": "Grüße,\n東京", **KEY}
    assert parsed(b"", "text") == {"value": "", **KEY}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the message has no value (a tombstone)"),
        (b"", "the value is blank, not a JSON object"),
        (b"[1]", "a JSON list, not an object"),
        (b"{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff", "the value is not UTF-8 text: invalid start byte at byte 0"),
    ],
)
def test_a_message_that_is_no_object_is_a_failed_row_with_its_key(value, message):
    row = parsed(value)
    assert isinstance(row, FailedRow)
    assert (row.failure.kind, row.failure.message) == ("unreadable_row", message)
    assert row.row.items() >= KEY.items()
    assert "llmbeam_raw" in row.row


def test_a_message_that_is_too_long_is_a_failed_row():
    (row,) = parse_message(Line(0, 2**40, b"{"), "json")
    assert row.failure.message.startswith("a message of 1,099,511,627,776 bytes")


@pytest.mark.fuzz
@given(st.none() | st.binary() | st.text().map(str.encode), st.sampled_from(["json", "text"]))
def test_every_message_becomes_exactly_one_row_with_its_key(value, value_format):
    row = parsed(value, value_format)
    columns = row.row if isinstance(row, FailedRow) else row
    assert columns.items() >= KEY.items()


@pytest.mark.parametrize("schema", [1, 255, 2**32 - 1])
def test_json_in_the_frame_of_a_schema_registry_is_read(schema: int) -> None:
    value = b"\0" + schema.to_bytes(4) + b'{"text": "a"}'
    for value_format, row in (("json", {"text": "a", "n": 1}), ("text", {"value": '{"text": "a"}', "n": 1})):
        (found,) = parse_message(Line(0, len(line := encode_message({"n": 1}, value)), line), value_format)
        assert found == row


@pytest.mark.fuzz
@given(st.binary().map(lambda content: b"\0\0\0\1\7" + content))
def test_no_text_is_made_of_avro_in_the_frame_of_a_schema_registry(value: bytes) -> None:
    line = encode_message({"n": 1}, value)
    try:
        json.loads(value[5:].decode())
    except ValueError:
        for value_format in ("json", "text"):
            (found,) = parse_message(Line(0, len(line), line), value_format)
            assert "schema registry (magic byte 0, schema 263)" in found.failure.message
