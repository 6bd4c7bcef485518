from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec import Batching, Limits
from airflow_provider_llmbeam.spec.limits import DEFAULT_BUCKET_BOUNDARIES


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests_per_minute", 0),
        ("tokens_per_minute", -1),
        ("max_in_flight", 0),
        ("max_in_flight", 10_001),
        ("expected_workers", 0),
        ("max_attempts", 0),
        ("max_attempts", 101),
        ("request_timeout_seconds", 0),
        ("max_throttled_seconds", 0),
    ],
)
def test_a_limit_out_of_bounds_is_refused(field: str, value: float) -> None:
    (problem,) = Limits.problems({field: value})
    assert (problem.field, problem.got) == (field, value)


@pytest.mark.parametrize("boundaries", [(), (0, 128), (-1,), (512, 128), (128, 128)])
def test_boundaries_that_do_not_ascend_are_refused(boundaries: tuple[int, ...]) -> None:
    (problem,) = Batching.problems({"bucket_boundaries": boundaries})
    assert problem.field == "bucket_boundaries"
    assert problem.got == boundaries
    assert "must ascend" in problem.want


@given(st.sets(st.integers(1, 1_000_000), min_size=1, max_size=20))
def test_boundaries_that_ascend_are_taken_as_they_are(boundaries: set[int]) -> None:
    given_boundaries = tuple(sorted(boundaries))
    assert Batching(bucket_boundaries=given_boundaries).resolved_boundaries == given_boundaries


def test_without_boundaries_they_are_powers_of_two() -> None:
    assert Batching().resolved_boundaries == DEFAULT_BUCKET_BOUNDARIES
    assert DEFAULT_BUCKET_BOUNDARIES[0] == 128
    assert DEFAULT_BUCKET_BOUNDARIES[-1] == 131_072


@pytest.mark.parametrize("size", [0, 100_001])
def test_a_batch_size_out_of_bounds_is_refused(size: int) -> None:
    (problem,) = Batching.problems({"max_batch_size": size})
    assert problem.field == "max_batch_size"
