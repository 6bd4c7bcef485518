from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.pipeline.sources.bigquery import json_values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7),
        (0.5, 0.5),
        (True, True),
        (None, None),
        ("ä", "ä"),
        (Decimal("9.990000000"), "9.99"),
        (Decimal("100.000000000"), "100"),
        (Decimal("0E-9"), "0"),
        (Decimal("-1E+3"), "-1000"),
        (Decimal("0." + "1" * 38), "0." + "1" * 38),
        (b"\x00\x01", "AAE="),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4, 5), "03:04:05"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02 03:04:05.000006+00:00"),
        ([Decimal("1.50"), None], ["1.5", None]),
        ({"a": [{"b": b"x"}]}, {"a": [{"b": "eA=="}]}),
    ],
)
def test_values_of_each_type_become_json_values(value: Any, expected: Any) -> None:
    row = json_values({"v": value})
    assert row == {"v": expected}
    assert json.loads(json.dumps(row)) == row


def test_equal_numbers_are_equal_keys() -> None:
    keys = {encode_key(json_values({"id": Decimal(text)}), ("id",)) for text in ("9.9", "9.90", "9.900000000")}
    assert len(keys) == 1
