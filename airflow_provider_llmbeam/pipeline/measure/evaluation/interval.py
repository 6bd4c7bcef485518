"""Bootstrap intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

#: Number of resamples: the ends of an interval then differ by about 1 % of its width from those of many more.
RESAMPLES = 1000
_OUTSIDE = 0.05


def bootstrap_interval(
    cases: Sequence[T], statistic: Callable[[Sequence[T]], float], seed: int = 0
) -> tuple[float, float]:
    """Returns the 95 % percentile interval of a statistic: equal cases and seeds give equal intervals.

    Cases that are all alike give an interval of no width, however few they are.

    Args:
        cases: The cases, one or more.
        statistic: The statistic of some of them.
        seed: Seed of the resampling.
    """
    source = random.Random(seed)
    found = sorted(statistic(source.choices(cases, k=len(cases))) for _ in range(RESAMPLES))
    outside = round(RESAMPLES * _OUTSIDE / 2)
    return found[outside], found[-1 - outside]
