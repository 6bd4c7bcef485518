from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.privacy.dlp import table as tables
from airflow_provider_llmbeam.pipeline.privacy.dlp.table import (
    Table,
    config_of,
    findings_in,
    is_truncated,
    pack,
)
from airflow_provider_llmbeam.pipeline.privacy.finding import Cell, Finding
from airflow_provider_llmbeam.spec.safety import DlpDetector
from tests.hostile import altered, letters

CONFIG = config_of(DlpDetector(type="dlp", info_types=("EMAIL_ADDRESS", "PERSON_NAME")))
FIXED = len(Table(()).encode_body(CONFIG).encode())

#: Texts with characters of one to four bytes, such as JSON escapes, and halves of surrogate pairs.
texts = st.text(st.characters() | st.sampled_from('👩‍🏳️\ud83d"\\\x00\x1b\né李'), min_size=1, max_size=60)
cells = st.builds(Cell, st.sampled_from(["text", "name", "🎉", "\ud83d", ""]), texts)


@pytest.mark.fuzz
@given(st.lists(cells, max_size=40, unique=True), st.integers(0, 900), st.integers(1, 12), st.integers(1, 30))
def test_each_text_is_in_one_request_and_no_request_exceeds_a_limit(given_cells, more_bytes, values, most):
    with pytest.MonkeyPatch.context() as limits:
        limits.setattr(tables, "MAX_BYTES", FIXED + more_bytes)
        limits.setattr(tables, "MAX_VALUES", values)
        limits.setattr(tables, "MAX_TEXTS", most)
        packed, too_long = pack(given_cells, CONFIG)
        assert Counter([*too_long, *(cell for each in packed for cell in each.cells)]) == Counter(given_cells)
        for each in packed:
            body = each.encode_body(CONFIG).encode()
            sent = json.loads(body)["item"]["table"]
            rows = [row["values"] for row in sent["rows"]]
            assert each.cells
            assert len(body) <= FIXED + more_bytes
            assert {len(row) for row in rows} == {len(sent["headers"])}
            assert sum(map(len, rows)) <= values
            assert sum(1 for row in rows for value in row if value) == len(each.cells) <= most
        for cell in too_long:
            assert len(Table((cell,)).encode_body(CONFIG).encode()) > FIXED + more_bytes - len("{},")


def test_a_request_of_the_largest_size_is_within_the_limit_of_the_service_and_full():
    packed, too_long = pack((Cell("text", f"{number:06}" + "é" * 300) for number in range(3_000)), CONFIG)
    sizes = [len(each.encode_body(CONFIG).encode()) for each in packed]
    assert max(sizes) <= tables.MAX_BYTES < 524_288
    assert min(sizes[:-1]) > 0.99 * tables.MAX_BYTES
    assert too_long == []


def service_reply(table: Table, spans: list[tuple[Cell, int, int]]) -> dict[str, Any]:
    """Returns a reply as the service makes it: it counts from what was sent, and leaves zeros out."""
    sent = json.loads(table.encode_body(CONFIG).encode())["item"]["table"]
    headers = [header["name"] for header in sent["headers"]]
    found = []
    for cell, start, end in spans:
        column = list(table.columns).index(cell.column)
        row = table.columns[cell.column].index(cell)
        text = sent["rows"][row]["values"][column]["stringValue"]
        bytes_before = len(text[:start].encode())
        byte_range = {"start": bytes_before, "end": bytes_before + len(text[start:end].encode())}
        place = {"fieldId": {"name": headers[column]}, "tableLocation": {"rowIndex": row}}
        location = {
            "byteRange": without_zeros(byte_range),
            "codepointRange": without_zeros({"start": start, "end": end}),
            "contentLocations": [
                {"recordLocation": place | {"tableLocation": without_zeros(place["tableLocation"])}}
            ],
        }
        found.append({"infoType": {"name": "EMAIL_ADDRESS"}, "likelihood": "LIKELY", "location": location})
    return {"result": {"findings": found}}


def without_zeros(numbers: dict[str, int]) -> dict[str, str]:
    return {name: str(number) for name, number in numbers.items() if number}


@pytest.mark.fuzz
@given(st.lists(cells, min_size=1, max_size=12, unique=True), st.data())
def test_a_finding_is_mapped_back_to_its_text_and_its_characters(given_cells, data):
    table = Table(tuple(given_cells))
    spans = []
    for cell in data.draw(st.lists(st.sampled_from(given_cells), max_size=6)):
        start = data.draw(st.integers(0, len(cell.text) - 1))
        spans.append((cell, start, data.draw(st.integers(start + 1, len(cell.text)))))
    names = ["\ufffd" if name == "\ud83d" else name for name in table.columns]
    found = findings_in(service_reply(table, spans), table)
    assert len(set(names)) == len(names)
    assert found == {
        cell: tuple(Finding(start, end, "EMAIL", 0.8) for each, start, end in spans if each == cell)
        for cell in given_cells
    }


TABLE = Table((Cell("text", "🎉 a@b.de"), Cell("name", "李雷")))
VALID = service_reply(TABLE, [(TABLE.cells[0], 2, 8), (TABLE.cells[1], 0, 2)])


@pytest.mark.fuzz
@given(altered(VALID))
def test_any_other_reply_gives_findings_within_the_texts_or_a_value_error(reply):
    reply = reply if isinstance(reply, dict) else {}
    is_truncated(reply)
    try:
        found = findings_in(reply, TABLE)
    except (TypeError, ValueError):
        return
    assert found.keys() == set(TABLE.cells)
    for cell, findings in found.items():
        assert all(0 <= each.start < each.end <= len(cell.text) for each in findings)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"codepointRange": {"start": "2", "end": "90"}}, "a finding at"),
        ({"contentLocations": []}, "a column that was not sent"),
        ({"contentLocations": [{"recordLocation": {"fieldId": {"name": "other"}}}]}, "a column that was not sent"),
    ],
)
def test_a_finding_that_is_in_no_text_is_an_error(change, fault):
    (first, _) = VALID["result"]["findings"]
    reply = {"result": {"findings": [first | {"location": first["location"] | change}]}}
    with pytest.raises(ValueError, match=fault):
        findings_in(reply, TABLE)


def test_a_finding_without_a_range_is_of_the_whole_text():
    (first, _) = VALID["result"]["findings"]
    location = {"contentLocations": first["location"]["contentLocations"]}
    found = findings_in({"result": {"findings": [first | {"location": location}]}}, TABLE)
    assert found[TABLE.cells[0]] == (Finding(0, 8, "EMAIL", 0.8),)


@given(letters)
def test_the_bytes_that_are_billed_are_those_that_are_sent(text):
    table = Table((Cell("text", text),))
    (row,) = json.loads(table.encode_body(CONFIG))["item"]["table"]["rows"]
    assert table.text_bytes == len(row["values"][0]["stringValue"].encode())
