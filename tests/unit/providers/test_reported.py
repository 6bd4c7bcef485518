from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_llmbeam.providers.reported import (
    MAX_TOKENS,
    UsageReader,
    believable_tokens,
    finish_reason_of,
    name_of,
)

UNBELIEVABLE = [
    -1,
    MAX_TOKENS + 1,
    10**12,
    2**63,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    1e300,
    True,
    "12",
    [],
    {"a": [1]},
]


@pytest.mark.parametrize(("reported", "tokens"), [(0, 0), (12, 12), (12.0, 12), (MAX_TOKENS, MAX_TOKENS)])
def test_a_whole_number_is_believed(reported: Any, tokens: int) -> None:
    found = believable_tokens(reported)
    assert found == tokens
    assert type(found) is int


@pytest.mark.parametrize("reported", [None, *UNBELIEVABLE], ids=lambda value: str(value)[:9])
def test_any_other_value_is_no_number_of_tokens(reported: Any) -> None:
    assert believable_tokens(reported) is None


@pytest.mark.parametrize("reported", UNBELIEVABLE, ids=lambda value: str(value)[:9])
def test_an_unbelievable_usage_is_an_estimate_and_a_missing_one_is_zero(reported: Any) -> None:
    reader = UsageReader("m")
    assert reader.total({"a": 5, "b": reported}, ("a", "b"), "x" * 40) == 10
    assert reader.total({"a": reported}, ("a",), "") == 0
    assert reader.total([reported], ("a",), "x" * 40) == 10
    assert reader.total({"a": 5, "b": None}, ("a", "b", "c"), "x" * 40) == 5
    assert reader.total(None, ("a",), "x" * 40) == 0


def test_unbelievable_usage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with caplog.at_level(logging.WARNING):
        reader = UsageReader("gemma")
        for reported in (None, 5, deep, *UNBELIEVABLE):
            reader.tokens(reported)
    (message,) = caplog.messages
    assert message.startswith("Model 'gemma' reports a number of tokens that cannot be true: list. Expected")


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("gemma-3", "gemma-3"),
        (" gemma\n", "gemma"),
        ("", "m"),
        (" ", "m"),
        ("\x00\x1b[31mred\u202e", "[31mred"),
        ("cut \ud83d", "cut \ufffd"),
        ("g" * 200, "g" * 128),
        (None, "m"),
        (5, "m"),
        (["gemma"], "m"),
    ],
)
def test_a_name_is_short_and_printable(reported: Any, name: str) -> None:
    assert name_of(reported, "m") == name


@pytest.mark.parametrize(
    ("reported", "reason"),
    [("stop", "stop"), (None, "stop"), ("", "stop"), (5, "unknown"), ({}, "unknown"), (["a"], "unknown")],
)
def test_a_finish_reason_is_a_name(reported: Any, reason: str) -> None:
    assert finish_reason_of(reported) == reason
