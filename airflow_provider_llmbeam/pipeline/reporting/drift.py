"""How much two distributions of answers differ. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: Number of groups of lengths that are compared.
LENGTH_GROUPS = 10
#: Count that stands for none, as the logarithm of zero does not exist.
_NONE = 0.5


class Stability(NamedTuple):
    """A population stability index.

    Attributes:
        psi: Σ (p − q) · ln(p / q) over all groups, where p and q are their shares now and before. Conventionally
            below 0.1 nothing has changed, and from 0.25 on a lot has.
        expected: Its mean if both are samples of the same distribution: (groups − 1) · (1/n + 1/m). An index that
            is not well above it says nothing.

    Source: Yurdakul and Naranjo, Statistical properties of the population stability index, 2020, section 3.
    """

    psi: float
    expected: float

    @property
    def is_notable(self) -> bool:
        """Whether it is at least 0.1, and three times what chance alone gives."""
        return self.psi >= 0.1 and self.psi > 3 * self.expected


class ChiSquare(NamedTuple):
    """Pearson's test of homogeneity of two samples.

    Attributes:
        statistic: χ²; 0 for equal shares.
        degrees_of_freedom: Number of values that occur in either sample, less one.
    """

    statistic: float
    degrees_of_freedom: int


def stability(now: Mapping[str, int], before: Mapping[str, int]) -> Stability | None:
    """Returns the population stability index of two counts of values; `None` if one of them is empty."""
    names = sorted(now.keys() | before.keys())
    return _stability([now.get(name, 0) for name in names], [before.get(name, 0) for name in names])


def length_stability(now: Mapping[int, int], before: Mapping[int, int]) -> Stability | None:
    """Returns the same for two counts of classes of lengths, in ten groups that were equally frequent before."""
    total, seen = sum(before.values()), 0
    groups: dict[int, int] = {}
    for number in sorted(now.keys() | before.keys()):
        groups[number] = min(LENGTH_GROUPS * seen // total, LENGTH_GROUPS - 1) if total else 0
        seen += before.get(number, 0)
    sums = [[0] * LENGTH_GROUPS, [0] * LENGTH_GROUPS]
    for counts, added in zip((now, before), sums, strict=True):
        for number, count in counts.items():
            added[groups[number]] += count
    used = [index for index in range(LENGTH_GROUPS) if sums[0][index] or sums[1][index]]
    return _stability(*([added[index] for index in used] for added in sums))


def chi_square(now: Mapping[str, int], before: Mapping[str, int]) -> ChiSquare | None:
    """Returns Pearson's statistic of two counts of values; `None` if one of them is empty."""
    names = [name for name in sorted(now.keys() | before.keys()) if now.get(name, 0) + before.get(name, 0)]
    totals = [sum(counts.values()) for counts in (now, before)]
    if not all(totals):
        return None
    statistic = 0.0
    for name in names:
        both = now.get(name, 0) + before.get(name, 0)
        for counts, total in zip((now, before), totals, strict=True):
            expected = both * total / sum(totals)
            statistic += (counts.get(name, 0) - expected) ** 2 / expected
    return ChiSquare(statistic, len(names) - 1)


def ratio_has_changed(failed: int, rows: int, failed_before: int, rows_before: int) -> bool:
    """Whether two ratios differ by at least one percentage point, and by three standard errors."""
    if not rows or not rows_before:
        return False
    difference = abs(failed / rows - failed_before / rows_before)
    pooled = (failed + failed_before) / (rows + rows_before)
    error = math.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / rows_before))
    return difference >= 0.01 and difference > 3 * error


def _stability(now: Sequence[int], before: Sequence[int]) -> Stability | None:
    rows, rows_before = sum(now), sum(before)
    if not rows or not rows_before:
        return None
    psi = 0.0
    for count, count_before in zip(now, before, strict=True):
        share, share_before = (count or _NONE) / rows, (count_before or _NONE) / rows_before
        psi += (share - share_before) * math.log(share / share_before)
    return Stability(psi, (len(now) - 1) * (1 / rows + 1 / rows_before))
