"""Draws prompts with replacement, with probability by their number of rows. Pure."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate


def draw_positions(rows: int, seed: int, count: int) -> tuple[int, ...]:
    """Returns independent draws of positions among rows, each from 0 to `rows` - 1.

    Args:
        rows: Number of rows.
        seed: Seed of the draws.
        count: Number of draws.
    """
    # Python keeps the sequence of `random()` from version to version, and that of no other method.
    source = random.Random(seed)
    return tuple(int(source.random() * rows) for _ in range(count))


def draw_sample(weights: Mapping[str, int], seed: int, count: int) -> tuple[str, ...]:
    """Returns independent draws of prompts, in the order in which they were drawn, equal ones included.

    They are a function of the seed and the set of prompts: rows are numbered in the order of the digests of their
    prompts, and `draw_positions` says which are drawn. A graph that holds no such list of all prompts finds the
    same ones from the sums of rows by the first digits of the digests.

    Args:
        weights: Number of rows by digest of the prompt, each at least one.
        seed: Seed of the draws.
        count: Number of draws.
    """
    digests = sorted(weights)
    ends = list(accumulate(weights[digest] for digest in digests))
    if not ends:
        return ()
    return tuple(digests[bisect_right(ends, position)] for position in draw_positions(ends[-1], seed, count))
