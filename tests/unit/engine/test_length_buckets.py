from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets, bucket_label

all_boundaries = st.sets(st.integers(1, 5000), min_size=1, max_size=12).map(lambda found: tuple(sorted(found)))


@pytest.mark.parametrize(
    ("tokens", "index"), [(0, 0), (127, 0), (128, 1), (129, 1), (511, 1), (512, 2), (10**9, 2)]
)
def test_a_boundary_belongs_to_the_bucket_above_it(tokens: int, index: int) -> None:
    assert LengthBuckets((128, 512), 1024).index(tokens) == index


@given(all_boundaries, st.integers(0, 6000), st.integers(0, 6000))
def test_a_longer_prompt_is_never_in_a_shorter_bucket(boundaries: tuple[int, ...], a: int, b: int) -> None:
    buckets = LengthBuckets(boundaries, 1024)
    short, long = sorted((a, b))
    assert 0 <= buckets.index(short) <= buckets.index(long) <= len(boundaries)


@given(all_boundaries, st.integers(0, 6000))
def test_a_label_describes_exactly_its_bucket(boundaries: tuple[int, ...], tokens: int) -> None:
    label = bucket_label(boundaries, LengthBuckets(boundaries, 1024).index(tokens))
    if label.startswith("<"):
        assert tokens < int(label[1:])
    elif label.startswith("≥"):
        assert tokens >= int(label[1:])
    else:
        low, high = map(int, label.split("-"))
        assert low <= tokens <= high


def test_the_labels_of_two_boundaries() -> None:
    assert [bucket_label((128, 512), index) for index in range(3)] == ["<128", "128-511", "≥512"]


@pytest.mark.parametrize(("max_output_tokens", "expected"), [(1024, 256), (100, 100)])
def test_a_bucket_without_answers_has_the_default_prediction(max_output_tokens: int, expected: int) -> None:
    assert LengthBuckets((128,), max_output_tokens).expected_output_tokens(5) == expected


def test_the_first_answer_replaces_the_default_prediction() -> None:
    buckets = LengthBuckets((128,), 1024)
    buckets.learn(5, 40)
    assert buckets.expected_output_tokens(100) == 40


def test_each_bucket_learns_separately() -> None:
    buckets = LengthBuckets((128,), 1024)
    buckets.learn(5, 40)
    buckets.learn(128, 300)
    assert [buckets.expected_output_tokens(tokens) for tokens in (5, 128)] == [40, 300]


def test_a_bucket_without_answers_has_the_prediction_of_the_nearest_one_with_answers() -> None:
    buckets = LengthBuckets((128, 512, 2048), 1024)
    buckets.learn(5, 40)
    buckets.learn(3000, 300)
    assert [buckets.expected_output_tokens(tokens) for tokens in (200, 600)] == [40, 300]


def test_what_a_request_reserves_is_the_tokens_of_its_prompts_and_of_their_expected_answers() -> None:
    buckets = LengthBuckets((128,), 1024)
    assert buckets.reserved_tokens((5, 200)) == 5 + 200 + 2 * 256
    buckets.learn(5, 40)
    assert buckets.reserved_tokens((5, 200)) == 5 + 200 + 2 * 40


def test_without_a_stated_quota_nothing_is_guessed_before_the_first_answer() -> None:
    buckets = LengthBuckets((128,), 1024, is_guessed=False)
    assert buckets.reserved_tokens((100, 900)) == 0
    buckets.learn(5, 40)
    assert buckets.reserved_tokens((100, 900)) == 1080


def test_a_long_prompt_is_known_before_the_first_answer() -> None:
    assert LengthBuckets((128,), 1024, is_guessed=False).reserved_tokens((1024,)) == 1280


def test_a_request_without_output_tokens_is_always_known() -> None:
    assert LengthBuckets((128,), 0, is_guessed=False).reserved_tokens((5,)) == 5


def test_the_prediction_follows_the_answers() -> None:
    buckets = LengthBuckets((128,), 1024)
    buckets.learn(5, 1000)
    for _ in range(200):
        buckets.learn(5, 10)
    assert buckets.expected_output_tokens(5) == pytest.approx(10, abs=0.5)


def test_one_outlier_changes_the_prediction_little() -> None:
    buckets = LengthBuckets((128,), 1024)
    buckets.learn(5, 100)
    buckets.learn(5, 1000)
    assert buckets.expected_output_tokens(5) == pytest.approx(145)


@given(all_boundaries, st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 10_000)), max_size=30))
def test_a_prediction_is_never_above_the_maximum(
    boundaries: tuple[int, ...], answers: list[tuple[int, int]]
) -> None:
    buckets = LengthBuckets(boundaries, 500)
    for input_tokens, output_tokens in answers:
        buckets.learn(input_tokens, output_tokens)
        assert 0 <= buckets.expected_output_tokens(input_tokens) <= 500
