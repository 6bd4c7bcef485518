from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.pacing.pilot import Pilot
from airflow_provider_llmbeam.engine.pacing.shared_failure import SharedFailure
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS


def sent_until_over(pilot: Pilot, outcomes: list[str]) -> int:
    """Sends rows whenever the pilot has room, one outcome after the other; `""` is an answer."""
    sent = finished = 0
    while not pilot.is_over and finished < len(outcomes):
        assert pilot.room > 0, "a pilot without room would wait forever"
        sent = min(len(outcomes), max(sent, finished + int(pilot.room)))
        kind = outcomes[finished]
        pilot.failed(kind, f"says {kind}") if kind else pilot.answered()  # type: ignore[arg-type]
        pilot.finished()
        finished += 1
    return sent


def test_the_same_refusal_of_32_rows_is_a_shared_failure_and_costs_32_requests() -> None:
    pilot = Pilot()
    assert sent_until_over(pilot, ["truncated"] * 10_000) == 32
    assert pilot.shared_failure == SharedFailure("truncated", 32, 32, "says truncated")


def test_one_answer_in_fifty_does_not_hide_the_shared_failure() -> None:
    pilot = Pilot()
    assert sent_until_over(pilot, ["truncated"] * 20 + [""] + ["truncated"] * 9_979) <= 64
    assert pilot.shared_failure == SharedFailure("truncated", 49, 50, "says truncated")


@given(st.lists(st.sampled_from(["", *FAILURE_KINDS]), max_size=300), st.integers(0, 3))
def test_a_pilot_ends_after_at_most_64_requests_and_never_waits_forever(outcomes: list[str], repairs: int) -> None:
    pilot = Pilot(max_repairs=repairs)
    assert sent_until_over(pilot, outcomes) * (1 + repairs) <= 64
    assert pilot.is_over or len(outcomes) < 64
    if pilot.shared_failure is not None:
        assert (pilot.shared_failure.asked - pilot.shared_failure.failed) * 49 <= pilot.shared_failure.failed


@pytest.mark.parametrize("answered_ratio", [0.2, 0.5, 0.95])
def test_mixed_results_are_no_shared_failure(answered_ratio: float) -> None:
    """At 0.2 a shared failure has the probability 0.8^32 = 0.0008, so that one in 100 would be a fault."""
    source = random.Random(7)
    for _ in range(100):
        outcomes = ["" if source.random() < answered_ratio else "truncated" for _ in range(200)]
        pilot = Pilot()
        sent_until_over(pilot, outcomes)
        assert pilot.shared_failure is None


@pytest.mark.parametrize(("max_failed_ratio", "is_ended"), [(0.1, True), (0.99, False)])
def test_as_many_failures_as_allowed_are_no_shared_failure_but_no_answer_at_all_is(
    max_failed_ratio: float, is_ended: bool
) -> None:
    rare, never = Pilot(max_failed_ratio=max_failed_ratio), Pilot(max_failed_ratio=max_failed_ratio)
    sent_until_over(rare, [""] + ["truncated"] * 500)
    assert (rare.shared_failure is not None) is is_ended
    sent_until_over(never, ["truncated"] * 500)
    assert never.shared_failure is not None


def test_failures_of_several_kinds_are_no_shared_failure() -> None:
    pilot = Pilot()
    sent_until_over(pilot, ["truncated", "blocked"] * 50)
    assert pilot.is_over
    assert pilot.shared_failure is None


def test_two_answers_open_the_window() -> None:
    pilot = Pilot()
    pilot.answered()
    assert pilot.room == 64
    pilot.answered()
    assert pilot.room == math.inf


def test_failures_after_the_pilot_are_no_shared_failure() -> None:
    pilot = Pilot()
    sent_until_over(pilot, ["", ""])
    for _ in range(1000):
        pilot.failed("truncated", "cut")
    assert pilot.shared_failure is None


@given(st.integers(0, 500), st.integers(0, 5))
def test_the_rows_of_a_pilot_are_spread_over_all_and_no_row_is_lost(rows: int, repairs: int) -> None:
    items = [*Pilot(max_repairs=repairs).spread(range(rows))]
    assert sorted(items) == list(range(rows))
    if rows > 64:
        first = sorted(items[: 64 // (1 + repairs) // 2])
        assert max(b - a for a, b in zip([0, *first], [*first, rows], strict=True)) <= 4 * rows / len(first)


def test_the_order_is_kept_once_the_pilot_is_over() -> None:
    pilot = Pilot()
    sent_until_over(pilot, ["", ""])
    assert [*pilot.spread(range(1000))] == [*range(1000)]
