from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmbeam_sandbox import BatchSettings
from llmbeam_sandbox.batch_inference.lines import drawn, encoded_lines, read_lines, reordered

RATIO = st.floats(0, 0.33)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.integers(0, 50), RATIO, RATIO, RATIO)
def test_every_line_is_drawn_once_with_the_shares_of_the_settings(count, fail, malformed, missing) -> None:
    settings = BatchSettings(fail_ratio=fail, malformed_ratio=malformed, missing_ratio=missing)
    rows = drawn([{"number": number} for number in range(count)], settings, random.Random(0))
    assert sorted(row.line["number"] for row in rows) == list(range(count))
    fates = [row.fate for row in rows]
    assert fates.count("failed") == min(count, math.ceil(fail * count - 1e-9))
    assert len(encoded_lines((row, row.line) for row in rows)) == count - fates.count("missing")


def test_the_order_depends_on_the_seed_alone() -> None:
    lines = [{"number": number} for number in range(20)]
    first, again, other = (drawn(lines, BatchSettings(), random.Random(seed)) for seed in (1, 1, 2))
    assert first == again != other


@settings(max_examples=30)
@given(JSON)
def test_an_echo_is_the_same_value_in_another_form(value) -> None:
    assert json.loads(json.dumps(reordered(value))) == value


def test_malformed_lines_are_cut_or_are_not_json() -> None:
    rows = drawn([{"a": "b"}] * 2, BatchSettings(malformed_ratio=1.0), random.Random(0))
    cut, other = encoded_lines((row, row.line) for row in rows)
    assert json.dumps({"a": "b"}).encode().startswith(cut)
    assert other.startswith(b"<html>")


@pytest.mark.parametrize(("data", "message"), [(b"{", "line 1"), (b"{}\n\n[]", "line 3"), (b'{"b": 1}', "`a`")])
def test_an_unreadable_line_is_named_by_its_number(data, message) -> None:
    with pytest.raises(ValueError, match=message):
        read_lines(data, *(["a"] if message == "`a`" else []))
