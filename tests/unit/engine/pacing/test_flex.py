from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.pacing.flex import (
    MAX_SHEDS,
    PROBE_SECONDS,
    SHEDS_IN_A_ROW,
    TAKEN_SECONDS,
    FlexCapacity,
    is_shed,
)
from airflow_provider_llmbeam.engine.retry import RequestError

NOW = 1_800_000_000.0


def shed_in_a_row(capacity, count=SHEDS_IN_A_ROW, begin=NOW - TAKEN_SECONDS):
    for _ in range(count):
        capacity.shed(begin)


@pytest.mark.parametrize(
    ("kind", "http_status", "expected"),
    [
        ("throttled", 429, True),
        ("server_error", 503, True),
        ("server_error", 500, False),
        ("quota_exhausted", 429, False),
        ("bad_request", 400, False),
        ("timeout", None, False),
    ],
)
def test_a_503_and_a_429_are_shed_requests(kind, http_status, expected):
    assert is_shed(RequestError(kind, "?", http_status=http_status)) is expected


def test_a_row_that_was_shed_four_times_is_sent_at_the_standard_tier():
    capacity = FlexCapacity(has_fallback=True)
    assert [capacity.takes(sheds, NOW) for sheds in (0, MAX_SHEDS - 1, MAX_SHEDS)] == [True, True, False]
    assert capacity.wait_seconds(MAX_SHEDS, NOW, 1.0, 0.0, 0.99) == 0.0


def test_a_row_without_a_fallback_stays_at_flex():
    capacity = FlexCapacity(has_fallback=False, until=NOW - 1, max_shed_seconds=600)
    shed_in_a_row(capacity)
    assert capacity.takes(100, NOW)
    assert capacity.wait_seconds(100, NOW, 599, 0.0, 0.5) > 0
    assert capacity.wait_seconds(100, NOW, 600, 0.0, 0.5) is None


def test_no_row_is_sent_at_flex_where_the_deadline_is_near():
    capacity = FlexCapacity(has_fallback=True, until=NOW)
    assert capacity.takes(0, NOW - 0.1)
    assert not capacity.takes(0, NOW)


def test_without_capacity_one_request_in_thirty_seconds_looks_for_it():
    capacity = FlexCapacity(has_fallback=True)
    shed_in_a_row(capacity, SHEDS_IN_A_ROW - 1)
    assert capacity.takes(0, NOW)
    capacity.shed(NOW)
    assert capacity.wait_seconds(1, NOW, 0.0, 0.0, 0.99) == 0.0, "the standard tier does not wait"
    probes = [second for second in range(100) if capacity.takes(0, NOW + second)]
    assert probes == [0, 30, 60, 90]
    capacity.answered()
    assert all(capacity.takes(0, NOW + second) for second in range(5))


def test_a_request_in_flight_for_ten_seconds_shows_capacity():
    capacity = FlexCapacity(has_fallback=True)
    capacity.sent(1, NOW - TAKEN_SECONDS)
    shed_in_a_row(capacity)
    assert all(capacity.takes(0, NOW) for _ in range(5))
    capacity.ended(1)
    assert [capacity.takes(0, NOW) for _ in range(3)] == [True, False, False], "one looks for new capacity"


def test_sheds_of_the_first_seconds_do_not_show_that_there_is_no_capacity():
    capacity = FlexCapacity(has_fallback=True)
    shed_in_a_row(capacity, begin=NOW)
    assert capacity.takes(0, NOW + TAKEN_SECONDS - 0.1)
    assert capacity.takes(0, NOW + TAKEN_SECONDS)
    assert not capacity.takes(0, NOW + TAKEN_SECONDS)


@given(st.integers(1, 1000), st.floats(0, 1, exclude_max=True), st.floats(0, 1e9))
def test_a_shed_row_waits_at_most_half_a_minute_unless_the_server_asks_for_more(sheds, chance, advised):
    wait = FlexCapacity(has_fallback=False).wait_seconds(sheds, NOW, 0.0, advised, chance)
    assert advised <= wait <= max(advised, PROBE_SECONDS)


@given(st.lists(st.sampled_from(["shed", "answered"]), max_size=100), st.integers(0, 10))
def test_flex_is_looked_for_again_after_any_history(events, sheds):
    capacity = FlexCapacity(has_fallback=True)
    for event in events:
        capacity.shed(NOW) if event == "shed" else capacity.answered()
    assert capacity.takes(0, NOW + PROBE_SECONDS)
    assert capacity.takes(sheds, NOW + 2 * PROBE_SECONDS) is (sheds < MAX_SHEDS)
