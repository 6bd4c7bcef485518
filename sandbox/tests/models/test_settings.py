from __future__ import annotations

import random
import statistics

import pytest
from llmbeam_sandbox.models.settings import Latency


def test_without_spread_the_first_byte_always_takes_the_mean() -> None:
    assert Latency(mean_seconds=0.2).first_byte_seconds(random.Random(1)) == 0.2


def test_the_mean_of_many_draws_is_the_configured_mean() -> None:
    source = random.Random(1)
    latency = Latency(mean_seconds=2.0, sigma=0.8)
    draws = [latency.first_byte_seconds(source) for _ in range(20_000)]
    assert statistics.mean(draws) == pytest.approx(2.0, rel=0.03)
    assert min(draws) > 0


def test_output_takes_time_per_token() -> None:
    assert Latency(per_output_token_seconds=0.01).output_seconds(50) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["mean_seconds", "sigma", "per_output_token_seconds"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_a_negative_or_infinite_time_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be a finite number >= 0"):
        Latency(**{name: value})
