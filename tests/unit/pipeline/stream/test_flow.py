"""When a worker reads, sends and commits."""

from __future__ import annotations

import math

import pytest

from airflow_provider_llmbeam.pipeline.stream.flow import (
    MAX_DOWN_SECONDS,
    down_since,
    parts_to_pause,
    room,
    seconds_to_commit,
    seconds_to_send,
)
from airflow_provider_llmbeam.spec import StreamOptions

OPTIONS = StreamOptions(commit_interval_ms=200, max_answers=500, max_held_answers=100, max_held_bytes=1000)
PROMPT = StreamOptions(commit_interval_ms=10_000, latency_budget_ms=500)
NONE: frozenset[str] = frozenset()


def test_as_many_messages_wait_as_may_be_in_flight():
    assert [room(unsettled, 64) for unsettled in (0, 64, 127, 128, 200)] == [128, 64, 1, 0, 0]


def test_without_room_no_partition_is_read():
    assert parts_to_pause({"a": (0, 0), "b": (0, 0)}, NONE, has_room=False, options=OPTIONS) == {"a", "b"}


@pytest.mark.parametrize("full", [(50, 0), (0, 500)])
def test_a_partition_that_waits_for_a_slow_answer_does_not_stop_the_others(full):
    held = {"a": full, "b": (49, 499)}
    assert parts_to_pause(held, NONE, has_room=True, options=OPTIONS) == {"a"}


def test_a_partition_is_read_again_at_half_of_its_share():
    for answers, is_paused in ((30, True), (25, True), (24, False)):
        held = {"a": (answers, 0), "b": (0, 0)}
        paused = parts_to_pause(held, frozenset("a"), has_room=True, options=OPTIONS)
        assert ("a" in paused) == is_paused


def test_a_transaction_is_due_after_the_interval_or_with_the_maximum_of_answers():
    assert seconds_to_commit(0, None, 0.0, 0.0, OPTIONS, 100.0) == math.inf
    assert seconds_to_commit(1, None, 100.0, 0.0, OPTIONS, 100.05) == pytest.approx(0.15)
    assert seconds_to_commit(1, None, 0.0, 0.0, OPTIONS, 100.0) == 0.0
    assert seconds_to_commit(500, None, 100.0, 0.0, OPTIONS, 100.0) == 0.0


def test_a_message_near_its_latency_budget_is_committed_before_the_interval_is_over():
    assert seconds_to_commit(1, 99.8, 100.0, 0.1, PROMPT, 100.0) == pytest.approx(0.2)
    assert seconds_to_commit(1, 90.0, 100.0, 0.1, PROMPT, 100.0) == 0.0


def test_the_age_of_a_message_ends_the_time_in_which_it_may_be_sent():
    options = StreamOptions(max_age_seconds=30)
    assert seconds_to_send(100.0, options, 110.0) == 20.0
    assert seconds_to_send(100.0, options, 140.0) == -10.0
    assert seconds_to_send(None, options, 140.0) is None
    assert seconds_to_send(100.0, OPTIONS, 140.0) is None


@pytest.mark.parametrize(
    ("before", "joined_at", "committed_at", "since"),
    [
        (None, math.inf, 0.0, 1000.0),  # the first error
        (900.0, math.inf, 950.0, 900.0),  # it could not join
        (900.0, 990.0, 0.0, 900.0),  # it has joined, and committed nothing
        (900.0, 950.0, 940.0, 900.0),  # that was an earlier member
        (900.0, 995.0, 996.0, 900.0),  # between two processes of one name
        (900.0, 950.0, 990.0, 1000.0),
        (600.0, 1000.0 - MAX_DOWN_SECONDS, 0.0, 1000.0),  # there were no messages
    ],
)
def test_a_worker_is_down_until_a_member_has_worked(before, joined_at, committed_at, since):
    assert down_since(before, joined_at, committed_at, 1000.0) == since
