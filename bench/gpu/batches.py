"""Divides prompts into the batches of a static-batch server, in three ways. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from airflow_provider_llmbeam.engine.plan import StaticBatching, plan
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.tokens import estimate_tokens

#: Boundaries of the length buckets of `BatchElements` if none are given (Beam 2.77, transforms/util.py).
BEAM_BOUNDARIES = (16, 32, 64, 128, 256, 512)


def in_order_of_arrival(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Returns the positions of the prompts of each batch: the next `size` prompts, whatever their lengths."""
    return [list(range(start, min(start + size, len(lengths)))) for start in range(0, len(lengths), size)]


def in_beam_buckets(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Returns the positions of the prompts of each batch: of one length bucket, in the order of arrival."""
    batches: list[list[int]] = []
    filling: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        bucket = bisect.bisect_right(BEAM_BOUNDARIES, length)
        batch = filling.setdefault(bucket, [])
        batch.append(position)
        if len(batch) == size:
            batches.append(filling.pop(bucket))
    return [*batches, *filling.values()]


def in_planned_requests(prompts: Sequence[Prompt], size: int) -> list[list[int]]:
    """Returns the positions of the prompts of each batch as the engine plans them.

    The limit is on padded tokens, as on Vertex AI: what `size` prompts of twice the mean length take.
    """
    lengths = [estimate_tokens(prompt.text) for prompt in prompts]
    batching = StaticBatching(max_padded_tokens=2 * size * sum(lengths) // len(lengths))
    return [list(request.indices) for request in plan(prompts, batching)]
