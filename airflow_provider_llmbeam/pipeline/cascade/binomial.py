"""Exact tails of the binomial distribution, and the bounds of Clopper and Pearson that follow from them. Pure."""

from __future__ import annotations

from functools import lru_cache
from math import lgamma, log, log1p

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Halvings of an interval from 0 to 1: the bound is then exact to 1e-12.
_HALVINGS = 40


@lru_cache(maxsize=64)
def _log_choices(draws: int) -> Floats:
    """Logarithms of the numbers of ways to choose 0, 1, … of the draws."""
    factorials = np.array([lgamma(count + 1) for count in range(draws + 1)])
    logs: Floats = factorials[-1] - factorials - factorials[::-1]
    return logs


def lower_tails(draws: int, share: float) -> Floats:
    """Returns P(X ≤ k) for k = 0 … `draws`, of a binomial X with a probability between 0 and 1."""
    counts = np.arange(draws + 1)
    logs = _log_choices(draws) + counts * log(share) + (draws - counts) * log1p(-share)
    tails: Floats = np.minimum(np.cumsum(np.exp(logs)), 1.0)
    return tails


@lru_cache(maxsize=4096)
def lower_bound(successes: int, draws: int, confidence: float) -> float:
    """Returns the lower end of the one-sided interval of Clopper and Pearson for a share of successes.

    Args:
        successes: Number of successes.
        draws: Number of draws.
        confidence: Probability that the share is not below the bound.
    """
    if successes == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # P(X ≥ successes), as P(failures ≤ draws - successes), which is small where the bound is.
        is_below = lower_tails(draws, 1 - middle)[draws - successes] <= 1 - confidence
        low, high = (middle, high) if is_below else (low, middle)
    return low


def upper_bound(successes: int, draws: int, confidence: float) -> float:
    """Returns the upper end of the one-sided interval of Clopper and Pearson; see `lower_bound`."""
    return 1 - lower_bound(draws - successes, draws, confidence)
