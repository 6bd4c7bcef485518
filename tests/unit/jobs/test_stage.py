"""Columns of a staged file: each value is read as the driver has returned it."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_llmbeam.jobs.stage import encode_part
from airflow_provider_llmbeam.spec.protocol.stage import TYPED
from airflow_provider_llmbeam.spec.typed_values import decode_typed

ZONES = st.sampled_from([UTC, timezone(timedelta(hours=2)), timezone(-timedelta(hours=9, minutes=30))])
#: Far enough from the first and the last year for any zone.
TIMES = {"min_value": datetime(2, 1, 1), "max_value": datetime(9998, 1, 1)}  # noqa: DTZ001
KINDS = [
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.text(st.characters()),  # with halves of surrogate pairs
    st.binary(),
    st.binary().map(memoryview),
    st.dates(),
    st.times(),
    st.timedeltas(timedelta(-(10**6)), timedelta(10**6)),
    st.datetimes(**TIMES),
    st.datetimes(**TIMES, timezones=ZONES),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**40), max_value=10**40),
    st.decimals(allow_nan=False, places=2, min_value=-(10**30), max_value=10**30),
    st.uuids(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.decimals(allow_nan=False, places=1),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
]
#: Of one type, as most databases have them, or of several, as SQLite may.
COLUMNS = st.sampled_from([*KINDS, st.one_of(KINDS)]).flatmap(lambda kind: st.lists(st.none() | kind, min_size=1))


def read(column):
    """Returns the cells of a column that was written to a file."""
    table = pq.read_table(io.BytesIO(encode_part(["column"], [(cell,) for cell in column])))
    return [decode_typed(cell[TYPED]) if isinstance(cell, dict) else cell for cell in table["column"].to_pylist()]


def described(value):
    """Returns what a prompt and the dead letter show of a value, with its type."""
    match value:
        case datetime():
            value = value.astimezone(UTC) if value.tzinfo else value
        case memoryview():
            value = bytes(value)
        case list() | tuple():
            return [*map(described, value)]
        case dict():
            return {name: described(inner) for name, inner in value.items()}
    return type(value).__name__, str(value)


@pytest.mark.fuzz
@given(COLUMNS)
@example([None, None])
@example([Decimal("9.9999999999999999990E-20")])
@example([1, 1.0, "1", b"1", True, None])
def test_each_value_of_a_column_is_read_as_it_was_returned(column):
    assert [*map(described, read(column))] == [*map(described, column)]
