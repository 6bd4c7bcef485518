"""Which batches a run has: each message is published once, and a run that is given up loses none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.queues.deliveries import (
    MAX_RUNS,
    RETENTION_SECONDS,
    Deliveries,
    first_batches,
)

STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "succeed", "fail", "delete"]), st.integers(0, 3)), max_size=40
)


@given(STEPS)
def test_each_batch_is_published_once_whichever_runs_fail_and_are_repeated(steps):
    state, files, written, published = Deliveries(), set(), 0, []
    for action, run in steps:
        name = f"run {run}"
        if action == "write":
            files.add(f"{written:04}")
            written += 1
            continue
        if action == "delete":  # a kill came between the record of a publication and the deletion of its files
            files -= set(state.done)
            continue
        taken = state.again(name, files)
        if taken is None:
            taken = tuple(state.pending(files))[: run + 1]  # with `max_messages`, not all that are there
            state = state.begun(name, taken, files)
        if action == "fail":
            continue
        assert state.again(name, files) is not None
        state = state.after_publication(name, (), 0.0, keeps=True)
        published += taken
        assert not set(taken) & set(state.pending(files))
    assert len(published) == len(set(published))
    assert set(state.pending(files)) | set(published) == {f"{number:04}" for number in range(written)}


def test_a_run_that_failed_has_the_same_batches_again_though_more_have_come():
    state = Deliveries().begun("a", ["1", "2"], {"1", "2"})
    assert state.again("a", {"1", "2", "3"}) == ("1", "2")
    assert state.again("b", {"1", "2", "3"}) is None


def test_a_run_that_is_cleared_after_its_success_takes_nothing():
    state = Deliveries().begun("a", ["1"], {"1"}).after_publication("a", (), 0.0, keeps=True)
    assert state.again("a", {"2"}) == ()
    assert state.after_publication("a", (), 0.0, keeps=True) == state
    unnamed = Deliveries().begun("", ["1"], {"1"}).after_publication("", (), 0.0, keeps=False)
    assert unnamed.again("", {"2"}) is None


def test_a_run_whose_batches_another_one_has_published_takes_new_ones():
    state = Deliveries().begun("a", ["1"], {"1"}).begun("b", ["1"], {"1"})
    state = state.after_publication("b", (), 0.0, keeps=True)
    assert state.again("a", {"1"}) is None
    assert state.again("a", set()) is None


def test_messages_that_may_be_delivered_again_are_known_as_long_as_pubsub_keeps_them():
    state = Deliveries().begun("a", ["1"], {"1"}).after_publication("a", ["m1"], 0.0, keeps=True)
    state = state.begun("b", ["2"], {"2"}).after_publication("b", ["m2"], RETENTION_SECONDS - 1, keeps=True)
    assert set(state.unacknowledged) == {"m1", "m2"}
    state = state.begun("c", (), ()).after_publication("c", (), RETENTION_SECONDS, keeps=True)
    assert set(state.unacknowledged) == {"m2"}


def test_the_last_runs_are_known_as_published():
    state = Deliveries()
    for number in range(MAX_RUNS + 1):
        state = state.begun(str(number), (), ()).after_publication(str(number), (), 0.0, keeps=True)
    assert len(state.published) == MAX_RUNS
    assert "0" not in state.published


@pytest.mark.parametrize(
    ("maximum", "names"),
    [(1, ("a",)), (5, ("a",)), (7, ("a",)), (8, ("a", "b")), (9, ("a", "b", "c")), (100, ("a", "b", "c"))],
)
def test_a_run_has_the_oldest_batches_with_no_more_messages_than_it_takes_or_one_batch(maximum, names):
    assert first_batches({"a": 5, "b": 3, "c": 1}, maximum) == names
    assert first_batches({}, maximum) == ()
