from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.pacing.concurrency import ConcurrencyLimit


def serve(limit: ConcurrencyLimit, capacity: int, answers: int, seed: int = 0) -> None:
    """Simulates a server that processes `capacity` requests at once and queues the rest, like vLLM."""
    chances = random.Random(seed)
    for _ in range(answers):
        tokens = max(1, round(chances.expovariate(1 / 200)))
        queue = max(1.0, limit.limit / capacity)
        limit.answered((32 + tokens) * 0.01 * queue * chances.uniform(0.9, 1.1), tokens)


def test_a_server_that_keeps_up_gets_the_maximum_concurrency():
    limit = ConcurrencyLimit(64)
    serve(limit, capacity=256, answers=3000)
    assert limit.limit == 64


def test_long_answers_among_short_ones_do_not_count_as_a_queue():
    limit = ConcurrencyLimit(64)
    serve(limit, capacity=64, answers=200)
    for _ in range(100):
        limit.answered(0.01 * (32 + 4000), 4000)
    assert limit.limit == 64


def test_the_limit_falls_when_the_server_slows_down_and_rises_when_it_recovers():
    limit = ConcurrencyLimit(64)
    serve(limit, capacity=64, answers=500)
    serve(limit, capacity=8, answers=500)
    low = limit.limit
    assert low < 48
    serve(limit, capacity=256, answers=3000)
    assert limit.limit == 64


def test_a_timeout_lowers_the_limit_but_never_to_nothing():
    limit = ConcurrencyLimit(64)
    limit.dropped()
    assert limit.limit == 57
    for _ in range(100):
        limit.dropped()
    assert limit.limit == ConcurrencyLimit.LEAST


@given(st.integers(1, 200), st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 10_000)), max_size=100))
def test_the_limit_stays_between_its_bounds(most, answers):
    limit = ConcurrencyLimit(most)
    for latency_seconds, tokens in answers:
        limit.answered(latency_seconds, tokens)
        assert min(ConcurrencyLimit.LEAST, most) <= limit.limit <= most
