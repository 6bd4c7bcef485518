from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.conversation.order import (
    conversation_of,
    fault_of,
    in_order,
    position_of,
    turn_name,
)
from airflow_provider_llmbeam.spec import Conversation

BY_TIME = Conversation(key=("user",), order_by="at")
BY_KEY = Conversation(key=("user",))

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.decimals(-9, 9, places=2)
scalars = numbers | st.text()


def sort_key(value: Any, conversation: Conversation = BY_TIME) -> Any:
    return in_order(position_of({"id": 1, "user": "u", "at": value}, conversation, ("id",)))


@pytest.mark.parametrize(
    "values",
    [
        [2, 10, 10.5, 11],
        ["2", "10", "10.50", Decimal("11"), "eleven"],
        ["2026-01-02T00:00:00Z", "2026-01-10T00:00:00Z"],
        [datetime(2026, 1, 1, 13, tzinfo=timezone(timedelta(hours=2))), datetime(2026, 1, 1, 12, tzinfo=UTC)],
        [date(2026, 1, 9), date(2026, 1, 10)],
    ],
)
def test_numbers_are_compared_as_numbers_and_times_as_times(values: list[Any]) -> None:
    keys = [sort_key(value) for value in values]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


@given(st.lists(st.tuples(scalars, st.integers() | st.text()), min_size=2, max_size=5))
def test_any_two_rows_have_one_order_and_equal_times_are_ordered_by_the_key_of_the_row(rows: list[Any]) -> None:
    positions = [position_of({"id": key, "at": at}, BY_TIME, ("id",)) for at, key in rows]
    ordered = [in_order(position) for position in sorted(positions, key=in_order)]
    positions.reverse()
    assert [in_order(position) for position in sorted(positions, key=in_order)] == ordered
    assert all(one <= other for one, other in pairwise(ordered))


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_that_is_no_year_in_utc_has_an_order_too(at: str) -> None:
    assert position_of({"id": 1, "at": datetime.fromisoformat(at)}, BY_TIME, ("id",))[0][:4] == at[:4]


def test_without_order_by_the_key_of_the_row_orders_the_turns() -> None:
    rows = [{"id": f"{number}", "user": "u"} for number in (9, 10, 11)]
    keys = [in_order(position_of(row, BY_KEY, ("id",))) for row in rows]
    assert keys == sorted(keys)


@pytest.mark.parametrize("value", [True, [1], float("inf"), {"a": 1}])
def test_a_row_without_an_order_is_no_turn(value: Any) -> None:
    fault = fault_of({"id": 1, "user": "u", "at": value}, BY_TIME, ("id",))
    assert fault == f"`order_by`: no number, text or time in column 'at' but {value!r}"


def test_a_row_without_a_conversation_is_no_turn() -> None:
    assert fault_of({"id": 1, "at": 1}, BY_TIME, ("id",)) == (
        "`key`: no value in column 'user'; the row has ['at', 'id']"
    )
    assert fault_of({"id": 1, "user": "u"}, BY_TIME, ("id",)) == (
        "`order_by`: no value in column 'at'; the row has ['id', 'user']"
    )
    assert fault_of({"id": 1, "user": "u", "at": 1}, BY_TIME, ("id",)) is None


@pytest.mark.parametrize("nothing", [None, "", "  ", float("nan")])
def test_rows_whose_cell_is_empty_are_of_no_conversation_and_share_no_history(nothing: Any) -> None:
    row = {"id": 1, "user": "u", "at": 1}
    assert "`key`: no value in column 'user'" in (fault_of({**row, "user": nothing}, BY_TIME, ("id",)) or "")
    assert "`order_by`: no value in column 'at'" in (fault_of({**row, "at": nothing}, BY_TIME, ("id",)) or "")
    assert fault_of({**row, "user": 0, "at": 0.0}, BY_TIME, ("id",)) is None


def test_a_masked_order_is_no_order() -> None:
    row = {"id": "<PHONE_1f2e3d4c>", "user": "u", "at": "<PHONE_1f2e3d4c>"}
    assert "was masked as personal data" in (fault_of(row, BY_TIME, ("id",)) or "")
    assert "column 'id' orders" in (fault_of(row, BY_KEY, ("id",)) or "")


def test_conversations_and_turns_are_named_by_their_columns() -> None:
    one, other = {"id": 1, "user": "a", "at": 1}, {"id": 1, "user": "b", "at": 1}
    assert conversation_of(one, BY_TIME) != conversation_of(other, BY_TIME)
    assert conversation_of(one, BY_TIME) == conversation_of({**one, "id": 2, "at": 9}, BY_TIME)
    assert turn_name(one, ("id",)) == '{"id": 1}'


def test_a_whole_number_names_one_conversation_also_as_a_double() -> None:
    names = [conversation_of({"user": user}, BY_TIME) for user in (17, 17.0, 17.5, "17")]
    assert names[0] == names[1]
    assert len(set(names)) == 3
