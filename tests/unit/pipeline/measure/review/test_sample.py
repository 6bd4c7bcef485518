"""The selection of answers: determined by the order of the rows, and an equal number of each label."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.measure.evaluation.rows import salt_of
from airflow_provider_llmbeam.pipeline.measure.review.sample import stratified

LABELS = st.lists(st.sampled_from("abcdefgh"), max_size=60)
SIZES = st.integers(1, 30)


def keyed(labels):
    return {f"key {number}": label for number, label in enumerate(labels)}


@given(LABELS, SIZES)
def test_as_many_keys_as_wanted_are_selected_once_and_in_their_order(labels, size):
    found = stratified(keyed(labels), size)
    assert len(found) == min(size, len(labels))
    assert found == [key for key in keyed(labels) if key in found]
    assert found == stratified(keyed(labels), size)


@given(LABELS, SIZES)
def test_every_label_gets_its_share_as_far_as_it_has_rows(labels, size):
    there = Counter(labels)
    selected = Counter(keyed(labels)[key] for key in stratified(keyed(labels), size))
    most = max(selected.values(), default=0)
    for label, count in there.items():
        assert selected[label] >= min(count, most - 1), "one more than another only by the remainder"
    if size >= len(there):
        assert selected.keys() == there.keys()


@given(LABELS, SIZES)
def test_the_first_rows_of_each_label_are_selected(labels, size):
    found = set(stratified(keyed(labels), size))
    for label in set(labels):
        of_label = [key in found for key, each in keyed(labels).items() if each == label]
        assert of_label == sorted(of_label, reverse=True)


@given(LABELS, SIZES)
def test_without_labels_the_first_rows_are_selected(labels, size):
    unlabelled = dict.fromkeys(keyed(labels), "")
    assert stratified(unlabelled, size) == [*unlabelled][:size]


def test_each_seed_has_its_own_salt():
    assert salt_of(0) == b""
    assert len({salt_of(seed) for seed in range(-50, 50)}) == 100
