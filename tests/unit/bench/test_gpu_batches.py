from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.prompt import Prompt
from bench.gpu.batches import BEAM_BOUNDARIES, in_beam_buckets, in_order_of_arrival, in_planned_requests

LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 9))
def test_each_way_has_each_prompt_once(lengths, size):
    prompts = [Prompt("x" * 4 * length) for length in lengths]
    ways = in_order_of_arrival(lengths, size), in_beam_buckets(lengths, size), in_planned_requests(prompts, size)
    for batches in ways:
        assert sorted(at for batch in batches for at in batch) == list(range(len(lengths)))
        assert all(batches)


@given(LENGTHS, st.integers(1, 9))
def test_a_batch_of_beam_is_of_one_bucket_and_at_most_full(lengths, size):
    for batch in in_beam_buckets(lengths, size):
        buckets = {sum(lengths[at] >= boundary for boundary in BEAM_BOUNDARIES) for at in batch}
        assert len(buckets) == 1
        assert len(batch) <= size


def test_planned_requests_pad_less_than_the_order_of_arrival():
    lengths = [1000, 1, 1000, 1, 1000, 1, 1000, 1]
    prompts = [Prompt("x" * 4 * length) for length in lengths]
    arrival, planned = in_order_of_arrival(lengths, 2), in_planned_requests(prompts, 2)
    assert padded(arrival, lengths) == 8000
    assert padded(planned, lengths) < 5000


def padded(batches, lengths):
    return sum(len(batch) * max(lengths[at] for at in batch) for batch in batches)
