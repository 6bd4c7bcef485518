"""Which messages a run takes: each is published once, and the position is never ahead of the output."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.queues.position import (
    MAX_RUNS,
    Edges,
    Position,
    Range,
    deleted,
    fair_shares,
    moved_back,
    readable,
)
from airflow_provider_llmbeam.spec import KafkaSource

SOURCE = KafkaSource(type="kafka", topic=("t",))
LATEST = KafkaSource(type="kafka", topic=("t",), first_run="latest")
WINDOW = KafkaSource.parse(
    {"type": "kafka", "topic": "t", "start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}
)


def edges(high, low=None):
    return Edges(low={"t": low or dict.fromkeys(high, 0)}, high={"t": high})


def offsets(taken):
    return {
        (topic, part, offset)
        for topic, ends in taken.end.items()
        for part, end in ends.items()
        for offset in range(taken.begin[topic][part], end)
    }


def begun(position, run, ends, source=SOURCE):
    taken = position.known(run, source) or position.new_range(source, edges(ends))
    return taken, position.begun(run, taken, "c")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "succeed", "fail"]),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    max_size=40,
)


@given(STEPS, st.none() | st.integers(1, 6))
def test_each_message_is_published_once_whichever_runs_fail_and_are_repeated(steps, maximum):
    source = SOURCE.model_copy(update={"max_messages": maximum})
    position, ends = Position(), {0: 0, 1: 0}
    published = Counter()
    of_runs = {}
    for action, run, count in steps:
        name = f"run {run}"
        if action == "send":
            ends[run % 2] += count
            if run == 3:
                ends.setdefault(2, 0)
            continue
        taken, position = begun(position, name, dict(ends), source)
        assert taken.offsets <= (maximum or taken.offsets)
        if action == "fail":
            continue
        assert position.is_next(taken)
        if taken.is_published:
            assert offsets(taken) == of_runs[name], "a repeated run has the same messages"
        else:
            of_runs[name] = offsets(taken)
            published.update(offsets(taken))
        position = position.published(name, keeps=True)
        assert all(offset <= ends[part] for part, offset in position.offsets["t"].items())
    assert set(published.values()) <= {1}
    done = {("t", part, offset) for part, end in position.offsets.get("t", {}).items() for offset in range(end)}
    assert done == set(published), "the position is neither ahead of the output nor behind it"


def bounded(maximum):
    return SOURCE.model_copy(update={"max_messages": maximum})


@pytest.mark.parametrize("source", [SOURCE, bounded(3)])
def test_a_run_that_failed_takes_the_same_messages_again_though_more_have_come(source):
    first, position = begun(Position(), "a", {0: 5}, source)
    again, _ = begun(position, "a", {0: 9}, bounded(8))
    assert again == first


def test_what_a_run_leaves_is_taken_by_the_next_ones_and_is_counted():
    position, taken, left = Position(), [], []
    for run in "abc":
        found, position = begun(position, run, {0: 2, 1: 9}, bounded(6))
        position = position.published(run, keeps=True)
        taken.append(found.end["t"])
        left.append(found.left)
    assert taken == [{0: 2, 1: 4}, {0: 2, 1: 9}, {0: 2, 1: 9}]
    assert left == [5, 0, 0]


def test_what_kafka_has_deleted_is_no_part_of_the_maximum():
    taken = Position(offsets={"t": {0: 5}}).new_range(bounded(3), edges({0: 20, 1: 0}, low={0: 9, 1: 0}))
    assert (taken.begin, taken.end, taken.left) == ({"t": {0: 5, 1: 0}}, {"t": {0: 12, 1: 0}}, 8)
    taken = Position(offsets={"t": {0: 5}}).new_range(bounded(3), edges({0: 3}))
    assert (taken.offsets, taken.left) == (0, 0), "the topic was created again, which is refused"


THERE = st.dictionaries(st.tuples(st.sampled_from("tu"), st.integers(0, 5)), st.integers(0, 30))


@given(THERE, st.integers(1, 60), st.randoms())
def test_a_maximum_is_divided_equally_and_used_up_and_depends_on_no_order(there, maximum, random):
    shares = fair_shares(there, maximum)
    assert sum(shares.values()) == min(maximum, sum(there.values()))
    assert all(share <= there[place] for place, share in shares.items())
    least = min((share for place, share in shares.items() if share < there[place]), default=maximum)
    assert all(share <= least + 1 for share in shares.values()), "no partition has more than one that waits"
    mixed = random.sample([*there.items()], len(there))
    assert fair_shares(dict(mixed), maximum) == shares


def test_with_fewer_messages_than_partitions_those_with_the_longest_rest_are_read():
    assert fair_shares({("t", 0): 5, ("t", 1): 9, ("t", 2): 7}, 2) == {("t", 0): 0, ("t", 1): 1, ("t", 2): 1}


def test_of_two_runs_at_the_same_time_the_first_to_publish_counts():
    first, position = begun(Position(), "a", {0: 5})
    second, position = begun(position, "b", {0: 9})
    assert position.is_next(first)
    assert position.is_next(second)
    position = position.published("b", keeps=True)
    assert not position.is_next(first)
    new, _ = begun(position, "a", {0: 12})
    assert offsets(new) == {("t", 0, 9), ("t", 0, 10), ("t", 0, 11)}


def test_without_airflow_the_next_run_of_the_same_name_takes_what_has_come_since():
    _, position = begun(Position(), "", {0: 5})
    position = position.published("", keeps=False)
    taken, _ = begun(position, "", {0: 7})
    assert (taken.begin, taken.end) == ({"t": {0: 5}}, {"t": {0: 7}})


@pytest.mark.parametrize("keeps", [True, False])
def test_a_publication_whose_confirmation_was_lost_is_recorded_again_without_an_effect(keeps):
    _, position = begun(Position(), "a", {0: 5})
    published = position.published("a", keeps=keeps)
    assert published.published("a", keeps=keeps) == published


def test_a_partition_that_was_added_is_read_from_its_beginning():
    _, position = begun(Position(), "a", {0: 5}, LATEST)
    position = position.published("a", keeps=True)
    taken, _ = begun(position, "b", {0: 5, 1: 3}, LATEST)
    assert taken.begin == {"t": {0: 5, 1: 0}}


def test_latest_begins_behind_what_is_there_also_if_the_first_run_fails():
    taken, position = begun(Position(), "a", {0: 5}, LATEST)
    assert taken.offsets == 0
    taken, _ = begun(position, "b", {0: 8}, LATEST)
    assert offsets(taken) == {("t", 0, 5), ("t", 0, 6), ("t", 0, 7)}


def test_a_time_range_neither_uses_nor_moves_the_position():
    before = Position(offsets={"t": {0: 50}})
    window = Range(window=WINDOW.window, begin={"t": {0: 10}}, end={"t": {0: 20}})
    position = before.begun("a", window, "c")
    assert position.is_next(window)
    assert position.known("a", WINDOW) == window
    assert position.known("a", SOURCE) is None, "another range was asked for"
    assert position.published("a", keeps=True).offsets == {"t": {0: 50}}
    assert position.published("a", keeps=False).runs == {}


def test_the_ranges_of_the_last_runs_are_kept():
    position = Position()
    for number in range(MAX_RUNS + 2):
        _, position = begun(position, str(number), {0: number})
    assert next(iter(position.runs)) == "2"


def test_what_kafka_has_deleted_is_counted_and_passed_over():
    taken = Range(begin={"t": {0: 5, 1: 0}}, end={"t": {0: 9, 1: 3}})
    found = edges({0: 20, 1: 3}, low={0: 7, 1: 3})
    assert deleted(taken, found) == 5
    assert readable(taken, found) == [("t", 0, 7, 9)]


@pytest.mark.parametrize(("high", "is_back"), [({0: 4}, True), ({0: 5}, False), ({}, True)])
def test_a_topic_that_was_made_anew_is_noticed(high, is_back):
    assert (moved_back(Range(begin={"t": {0: 5}}, end={"t": {0: 5}}), edges(high)) is not None) == is_back
