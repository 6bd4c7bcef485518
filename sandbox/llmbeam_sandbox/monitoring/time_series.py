"""Points of time series, aligned and reduced as Cloud Monitoring does it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Kind = Literal["GAUGE", "DELTA"]
ValueType = Literal["INT64", "DOUBLE", "DISTRIBUTION"]
MINUTE_SECONDS = 60
SCALE, GROWTH, FINITE_BUCKETS = 1.0, 1.25, 64
"""Buckets of distributions: the first is below `SCALE`, each other one `GROWTH` times as wide as the previous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The distribution of values.

    Attributes:
        count: Number of values.
        total: Sum of the values.
        squares: Sum of their squares.
        buckets: Number of values by bucket.
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    buckets: Mapping[int, int] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Mean of the values; 0 without values."""
        return self.total / self.count if self.count else 0.0

    def fields(self) -> dict[str, Any]:
        """Returns the distribution as the API returns it."""
        counts = [str(self.buckets.get(index, 0)) for index in range(max(self.buckets, default=-1) + 1)]
        options = {"numFiniteBuckets": FINITE_BUCKETS, "growthFactor": GROWTH, "scale": SCALE}
        return {
            "count": str(self.count),
            "mean": self.mean,
            "sumOfSquaredDeviation": max(0.0, self.squares - self.total * self.mean),
            "bucketOptions": {"exponentialBuckets": options},
            "bucketCounts": counts,
        }


Value = int | float | Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value.

    Attributes:
        start: Start of the interval, in seconds since the epoch; `end` for a gauge.
        end: End of the interval, in seconds since the epoch.
        value: Value in the interval.
    """

    start: float
    end: float
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The points of one combination of labels, the oldest first.

    Attributes:
        labels: Labels of the metric.
        resource: Labels of the resource.
        points: Points in ascending order of time.
    """

    labels: Mapping[str, str]
    resource: Mapping[str, str]
    points: Sequence[Point]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Series of one metric.

    Attributes:
        kind: Whether points are values, or differences to the previous point.
        value_type: Type of the values.
        series: Series that have points.
    """

    kind: Kind
    value_type: ValueType
    series: Sequence[Series]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The aggregation of a query.

    Attributes:
        period_seconds: Alignment period, in seconds, at least a minute.
        aligner: Aligner, e.g. "ALIGN_RATE".
        reducer: Reducer, e.g. "REDUCE_SUM".
        group_by: Labels to keep: "metric" or "resource", and the name.
    """

    period_seconds: float = MINUTE_SECONDS
    aligner: str = "ALIGN_NONE"
    reducer: str = "REDUCE_NONE"
    group_by: Sequence[tuple[str, str]] = ()


def distribution(value: float, count: int = 1) -> Distribution:
    """Returns the distribution of `count` equal values."""
    index = 0 if value < SCALE else min(FINITE_BUCKETS, int(math.log(value / SCALE, GROWTH))) + 1
    return Distribution(count=count, total=value * count, squares=value * value * count, buckets={index: count})


def added(values: Iterable[Value]) -> Value:
    """Returns the sum of numbers, or the union of distributions."""
    found = list(values)
    if not isinstance(found[0], Distribution):
        return sum(_numbers(found))
    counts = _distributions(found)
    buckets: dict[int, int] = {}
    for one in counts:
        for index, count in one.buckets.items():
            buckets[index] = buckets.get(index, 0) + count
    return Distribution(
        count=sum(one.count for one in counts),
        total=sum(one.total for one in counts),
        squares=sum(one.squares for one in counts),
        buckets=buckets,
    )


def percentile(values: Distribution, percent: float) -> float:
    """Returns a percentile; the values of a bucket count as evenly distributed."""
    wanted, below = percent / 100 * values.count, 0
    for index, count in sorted(values.buckets.items()):
        if below + count >= wanted:
            low = SCALE * GROWTH ** (index - 1) if index else 0.0
            high = SCALE * GROWTH**index if index else SCALE
            return low + (high - low) * (wanted - below) / count
        below += count
    return 0.0


def aggregated(table: Table, aggregation: Aggregation, end: float) -> Table:
    """Returns the aggregated series.

    Args:
        table: All points of the query's interval.
        aggregation: Aggregation of the query.
        end: End of the query's interval, in seconds since the epoch; periods are counted back from it.

    Raises:
        ValueError: The service refuses the aggregation, or it is not emulated.
    """
    aligned = _aligned(table, aggregation, end)
    if aggregation.reducer == "REDUCE_NONE":
        return aligned
    if aggregation.aligner == "ALIGN_NONE":
        raise ValueError(
            f"The crossSeriesReducer {aggregation.reducer} requires a perSeriesAligner other than ALIGN_NONE."
        )
    return _reduced(aligned, aggregation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aligner:
    """Function that joins the values of a period, the inputs it accepts, and its result type if that differs."""

    join: Callable[[Sequence[Value], float], Value]
    kinds: frozenset[str] = frozenset({"GAUGE", "DELTA"})
    value_types: frozenset[str] = frozenset({"INT64", "DOUBLE"})
    kind: Kind | None = None
    value_type: ValueType | None = None


def _percentile(percent: float) -> _Aligner:
    return _Aligner(
        join=lambda values, seconds: percentile(_distributions([added(values)])[0], percent),
        value_types=frozenset({"DISTRIBUTION"}),
        kind="GAUGE",
        value_type="DOUBLE",
    )


_ALL_TYPES = frozenset({"INT64", "DOUBLE", "DISTRIBUTION"})
# What each takes and returns: `Aggregation.perSeriesAligner` in the API's discovery document.
_ALIGNERS: Mapping[str, _Aligner] = {
    "ALIGN_SUM": _Aligner(join=lambda values, seconds: added(values), value_types=_ALL_TYPES),
    "ALIGN_DELTA": _Aligner(
        join=lambda values, seconds: added(values), kinds=frozenset({"DELTA"}), value_types=_ALL_TYPES
    ),
    "ALIGN_RATE": _Aligner(
        join=lambda values, seconds: sum(_numbers(values)) / seconds,
        kinds=frozenset({"DELTA"}),
        kind="GAUGE",
        value_type="DOUBLE",
    ),
    "ALIGN_MEAN": _Aligner(
        join=lambda values, seconds: sum(_numbers(values)) / len(values), kind="GAUGE", value_type="DOUBLE"
    ),
    "ALIGN_MAX": _Aligner(join=lambda values, seconds: max(_numbers(values)), kind="GAUGE"),
    "ALIGN_NEXT_OLDER": _Aligner(
        join=lambda values, seconds: values[-1], kinds=frozenset({"GAUGE"}), value_types=_ALL_TYPES
    ),
    "ALIGN_PERCENTILE_50": _percentile(50),
    "ALIGN_PERCENTILE_95": _percentile(95),
    "ALIGN_PERCENTILE_99": _percentile(99),
}


def _aligned(table: Table, aggregation: Aggregation, end: float) -> Table:
    if aggregation.aligner == "ALIGN_NONE":
        return table
    aligner = _ALIGNERS.get(aggregation.aligner)
    if aligner is None:
        known = ", ".join(_ALIGNERS)
        raise ValueError(f"The aligner {aggregation.aligner} is not emulated by the sandbox; these are: {known}.")
    if table.kind not in aligner.kinds or table.value_type not in aligner.value_types:
        raise ValueError(
            f"The aligner {aggregation.aligner} cannot be applied to metrics with kind {table.kind} and value "
            f"type {table.value_type}."
        )
    kind, seconds = aligner.kind or table.kind, aggregation.period_seconds

    def points(series: Series) -> list[Point]:
        periods: dict[int, list[Value]] = {}
        for point in series.points:
            periods.setdefault(int((end - point.end) // seconds), []).append(point.value)
        return [
            _point(kind, end - back * seconds, seconds, aligner.join(values, seconds))
            for back, values in sorted(periods.items(), reverse=True)
        ]

    found = [replace(series, points=points(series)) for series in table.series]
    return Table(kind=kind, value_type=aligner.value_type or table.value_type, series=found)


def _reduced(table: Table, aggregation: Aggregation) -> Table:
    value_type: ValueType = table.value_type
    join: Callable[[Sequence[Value]], Value]
    match aggregation.reducer:
        case "REDUCE_SUM":
            join = added
        case "REDUCE_MEAN":
            join, value_type = _mean, "DOUBLE"
        case "REDUCE_MAX" if value_type != "DISTRIBUTION":
            join = lambda values: max(_numbers(values))  # noqa: E731 - one of several
        case "REDUCE_MAX":
            raise ValueError("The reducer REDUCE_MAX cannot be applied to metrics with value type DISTRIBUTION.")
        case other:
            raise ValueError(
                f"The reducer {other} is not emulated by the sandbox; these are: REDUCE_NONE, REDUCE_SUM, "
                "REDUCE_MEAN, REDUCE_MAX."
            )
    groups: dict[tuple[tuple[tuple[str, str], ...], ...], list[Series]] = {}
    for series in table.series:
        kept = tuple(
            tuple(
                (name, labels.get(name, "")) for at, name in aggregation.group_by if at == side and name != "type"
            )
            for side, labels in (("metric", series.labels), ("resource", series.resource))
        )
        groups.setdefault(kept, []).append(series)
    found = [
        Series(labels=dict(labels), resource=dict(resource), points=_joined(members, join))
        for (labels, resource), members in groups.items()
    ]
    return Table(kind=table.kind, value_type=value_type, series=found)


def _joined(members: Sequence[Series], join: Callable[[Sequence[Value]], Value]) -> list[Point]:
    together: dict[float, list[Point]] = {}
    for series in members:
        for point in series.points:
            together.setdefault(point.end, []).append(point)
    return [
        replace(points[0], value=join([point.value for point in points])) for _, points in sorted(together.items())
    ]


def _point(kind: Kind, end: float, seconds: float, value: Value) -> Point:
    return Point(start=end if kind == "GAUGE" else end - seconds, end=end, value=value)


def _mean(values: Sequence[Value]) -> float:
    if isinstance(values[0], Distribution):
        return _distributions([added(values)])[0].mean
    return sum(_numbers(values)) / len(values)


def _numbers(values: Iterable[Value]) -> list[int | float]:
    return [value for value in values if not isinstance(value, Distribution)]


def _distributions(values: Iterable[Value]) -> list[Distribution]:
    return [value for value in values if isinstance(value, Distribution)]
