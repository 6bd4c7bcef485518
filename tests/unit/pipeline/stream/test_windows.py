"""Windows of a stream: sums of increments, in any order."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.stream.journal import PartitionJournal
from airflow_provider_llmbeam.pipeline.stream.order import PartitionOrder
from airflow_provider_llmbeam.pipeline.stream.partition import Commit, Message, Partition, Result, Usage
from airflow_provider_llmbeam.pipeline.stream.windows import (
    Window,
    begin_of_last,
    begin_of_window,
    bucket_counts,
    decode_increment,
    encode_increment,
    increment_of,
    merge,
    slide,
)

AT_MS = 1_764_400_059_500


def commit(*results: tuple[float | None, Usage]) -> Commit:
    """Returns a transaction of messages, each with its age in seconds and what it has used."""
    made = tuple(
        Result(Message(number, None, age and AT_MS / 1000 - age, AT_MS / 1000 - 1, None), "t", None, b"", usage)
        for number, (age, usage) in enumerate(results)
    )
    partition = Partition(("q", 0), PartitionOrder(0), PartitionJournal())
    return Commit(partition, made, len(made), {}, "", None)


counters = st.dictionaries(st.integers(-50, 60), st.integers(1, 5)).map(Counter)
windows = st.builds(
    Window,
    answers=st.integers(0, 9),
    dead_letter=st.dictionaries(st.sampled_from(["blocked", "timeout"]), st.integers(1, 5)).map(Counter),
    cost_nano_usd=st.integers(0, 9),
    latencies=counters,
    lag=st.none() | st.integers(0, 9),
)


def test_an_increment_has_answers_failures_tokens_and_the_time_with_the_commit():
    made = increment_of(
        [commit((2.0, Usage(None, 10, 3, 70)), (0.5, Usage("blocked", 4, 0, 5))), commit((None, Usage(None)))],
        AT_MS,
        0.1,
    )
    assert (made.answers, made.dead_letter, made.failed, made.messages) == (2, {"blocked": 1}, 1, 3)
    assert (made.input_tokens, made.output_tokens, made.cost_nano_usd) == (14, 3, 75)
    assert made.latency_ms == 2100 + 600 + 1100
    assert made.latency_seconds(0.5) == pytest.approx(1.1, rel=0.1)
    assert made.latency_seconds(1.0) == pytest.approx(2.1, rel=0.1)


def test_a_message_from_a_clock_that_is_ahead_has_waited_for_no_time():
    assert increment_of([commit((-5.0, Usage(None)))], AT_MS, 0.0).latency_ms == 0


@given(st.lists(windows, max_size=5), st.randoms())
def test_the_sum_of_windows_is_the_same_in_any_order_and_in_any_groups(every, chance: random.Random):
    whole = merge([{0: each} for each in every])
    chance.shuffle(every)
    half = len(every) // 2
    assert merge([merge([{0: each} for each in part]) for part in (every[:half], every[half:])]) == whole


@given(windows)
def test_a_record_has_the_increment_and_what_it_names(window):
    words, read = decode_increment(encode_increment(window, window=60, member="w0"))
    assert words == {"window": 60, "member": "w0"}
    assert read == replace(window, lag=None)


def test_windows_begin_at_multiples_of_their_length():
    assert begin_of_window(AT_MS, 60) == 1_764_400_020
    assert begin_of_window(AT_MS + 20_500, 60) == 1_764_400_080


def test_a_window_is_the_last_one_when_all_members_have_had_time_to_write_it():
    assert [begin_of_last(now, 20, 60) for now in (199.9, 200, 259.9)] == [60, 120, 120]


def test_a_sliding_window_is_the_sum_of_the_last_ones_with_or_without_messages():
    every = {0: Window(answers=1), 60: Window(answers=2), 180: Window(answers=8), 240: Window(answers=16)}
    assert [slide(every, last, 180, 60).answers for last in (60, 120, 180, 240, 300)] == [3, 3, 10, 24, 24]
    assert slide(every, 60, 1, 60).answers == 2, "at least one window"


@given(counters)
def test_the_buckets_of_a_histogram_are_cumulative_and_end_with_all(latencies):
    found = [*bucket_counts(latencies)]
    numbers = [number for _, number in found]
    assert numbers == sorted(numbers)
    assert found[-1] == ("+Inf", latencies.total())
    bounds = [float(bound) for bound, _ in found]
    assert bounds == sorted({*bounds})
