from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec.plain_values import plain_row, plain_value

AT = datetime(2025, 1, 1, 5, 0, 0, 1, UTC)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        *((missing, None) for missing in (math.nan, np.float64("nan"), pd.NaT, pd.NA, Decimal("NaN"))),
        (np.datetime64("NaT"), None),
        (np.timedelta64("NaT"), None),
        (np.int64(5), 5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.float32(0.5), 0.5),
        (np.array([1.0, math.nan]), [1.0, None]),
        (np.datetime64("2025-01-01T05:00:00.000000001"), "2025-01-01T05:00:00.000000001"),
        (pd.Series([1, 2]), [1, 2]),
        (pd.Timestamp(AT), AT),
        (pd.Timestamp("2025-01-01T05:00:00.000000001"), "2025-01-01T05:00:00.000000001"),
        (pd.Timedelta(days=1), timedelta(days=1)),
        (Timestamp.of(AT), AT),
        ({"a": [math.nan, (pd.NaT, 1)]}, {"a": [None, (None, 1)]}),
    ],
)
def test_a_value_of_a_library_becomes_a_plain_one(value: Any, plain: Any) -> None:
    found = plain_value(value)
    assert (found, type(found)) == (plain, type(plain))
    assert plain_row({"x": value}) == {"x": plain}


@pytest.mark.parametrize("value", [1, "a", None, True, b"\xff", AT, date(2025, 1, 1), math.inf, Decimal(1), {1}])
def test_a_plain_value_is_kept(value: Any) -> None:
    for row in ({"x": value}, {"x": [value]}, {"x": {"in": (value,)}}):
        assert plain_row(row) is row


class Odd:
    """A value of another library."""


@pytest.mark.fuzz
@given(
    st.recursive(
        st.floats() | st.none() | st.integers() | st.text(max_size=2) | st.just(Odd()) | st.just(pd.NA),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    )
)
def test_a_plain_value_has_no_missing_ones_and_stays_as_it_is(value: Any) -> None:
    plain = plain_value(value)
    assert plain_value(plain) is plain
    assert "nan" not in repr(plain)
    assert "<NA>" not in repr(plain)
