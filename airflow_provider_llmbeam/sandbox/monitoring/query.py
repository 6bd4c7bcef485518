"""What a call of `timeSeries.list` asks for, and the page of series that answers it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_llmbeam.sandbox.monitoring.catalog import RESOURCES, Metric
from airflow_provider_llmbeam.sandbox.monitoring.filter import Selection, read_field, read_filter
from airflow_provider_llmbeam.sandbox.monitoring.time_series import (
    MINUTE_SECONDS,
    Aggregation,
    Distribution,
    Point,
    Series,
    Table,
    Value,
)

NO_COMBINATION = (
    "The supplied filter does not specify a valid combination of metric and monitored resource descriptors. The "
    "query will not return any time series."
)
MOST_RESULTS = 100_000
_KNOWN = frozenset(
    {"filter", "interval.startTime", "interval.endTime", "view", "pageSize", "pageToken"}
    | {
        f"aggregation.{name}"
        for name in ("alignmentPeriod", "perSeriesAligner", "crossSeriesReducer", "groupByFields")
    }
)
# Parameters of every Google API.
_COMMON = frozenset({"alt", "key", "prettyPrint", "fields", "quotaUser", "$alt", "$.xgafv", "access_token"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One call.

    Attributes:
        selection: Which series.
        start: Points later than this, in seconds since the epoch.
        end: Points up to this, in seconds since the epoch.
        aggregation: What is done with them.
        has_points: Whether the points are told as well.
        page_size: Points on a page, or series when no points are told.
        skipped: How many of them were told before.
    """

    selection: Selection
    start: float
    end: float
    aggregation: Aggregation
    has_points: bool
    page_size: int
    skipped: int

    def fits(self, metric: Metric) -> bool:
        """Return whether a metric has the resource and the labels that are named."""
        selection, resource = self.selection, RESOURCES[metric.resource_type]
        grouped = {
            side: {name for at, name in self.aggregation.group_by if at == side and name != "type"}
            for side in ("metric", "resource")
        }
        return (
            selection.resource_type in (None, metric.resource_type)
            and metric.labels >= {*selection.labels, *grouped["metric"]}
            and resource >= {*selection.resource, *grouped["resource"]}
        )


def read_query(query: Mapping[str, str], repeated: Mapping[str, Sequence[str]]) -> Query:
    """Return what a call asks for.

    Args:
        query: Parameter to value.
        repeated: Parameter to values.

    Raises:
        ValueError: Something is missing, cannot be read, or is not emulated.
    """
    unknown = query.keys() - _KNOWN - _COMMON
    if unknown:
        raise ValueError(f"The sandbox does not emulate the parameter(s) {', '.join(sorted(unknown))}.")
    start, end = (_seconds(f"interval.{name}", query) for name in ("startTime", "endTime"))
    if end < start:
        raise ValueError(
            "Field interval had an invalid value: The start time must not be later than the end time; got "
            f"{query['interval.startTime']} and {query['interval.endTime']}."
        )
    view = query.get("view", "FULL")
    if view not in ("FULL", "HEADERS"):
        raise ValueError(f'Invalid value at "view": "{view}"; FULL and HEADERS are known.')
    fields = [read_field(text) for text in repeated.get("aggregation.groupByFields", ())]
    aggregation = Aggregation(
        period_seconds=_period(query.get("aggregation.alignmentPeriod", f"{MINUTE_SECONDS}s")),
        aligner=query.get("aggregation.perSeriesAligner", "ALIGN_NONE"),
        reducer=query.get("aggregation.crossSeriesReducer", "REDUCE_NONE"),
        group_by=fields,
    )
    return Query(
        selection=read_filter(query.get("filter", "")),
        start=start,
        end=end,
        aggregation=aggregation,
        has_points=view == "FULL",
        page_size=min(_number("pageSize", query) or MOST_RESULTS, MOST_RESULTS),
        skipped=_number("pageToken", query),
    )


def page_of(metric: Metric, table: Table, query: Query) -> dict[str, Any]:
    """Return a page as the API shows it: newest points first, a series on several pages if need be."""
    if not query.has_points:
        found = [_fields(metric, table, series, None) for series in table.series]
        return _page(found[query.skipped : query.skipped + query.page_size], query, len(found))
    shown, position = [], 0
    for series in table.series:
        newest = list(reversed(series.points))
        first = max(0, query.skipped - position)
        last = query.skipped + query.page_size - position
        if newest[first : max(0, last)]:
            shown.append(_fields(metric, table, series, newest[first:last]))
        position += len(newest)
    return _page(shown, query, position)


def rfc3339(seconds: float) -> str:
    """Return a time as the API writes it."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="auto" if seconds % 1 else "seconds")
    return text.replace("+00:00", "Z")


def _page(shown: list[dict[str, Any]], query: Query, count: int) -> dict[str, Any]:
    told: dict[str, Any] = {"timeSeries": shown} if shown else {}
    end = query.skipped + query.page_size
    return told | ({"nextPageToken": str(end)} if end < count else {})


def _fields(metric: Metric, table: Table, series: Series, points: Sequence[Point] | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "metric": {"type": metric.type, "labels": dict(series.labels)},
        "resource": {"type": metric.resource_type, "labels": dict(series.resource)},
        "metricKind": table.kind,
        "valueType": table.value_type,
    }
    if points is not None:
        told["points"] = [
            {
                "interval": {"startTime": rfc3339(point.start), "endTime": rfc3339(point.end)},
                "value": _value(point.value, table),
            }
            for point in points
        ]
    return told


def _value(value: Value, table: Table) -> dict[str, Any]:
    if isinstance(value, Distribution):
        return {"distributionValue": value.fields()}
    return {"doubleValue": float(value)} if table.value_type == "DOUBLE" else {"int64Value": str(int(value))}


def _seconds(name: str, query: Mapping[str, str]) -> float:
    text = query.get(name, "")
    if not text:
        raise ValueError(f"Field {name} had an invalid value: it is required, as RFC 3339.")
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f'Field {name} had an invalid value of "{text}": it must be RFC 3339.') from error
    if at.tzinfo is None:
        raise ValueError(f'Field {name} had an invalid value of "{text}": it must have an offset, or end in Z.')
    return at.timestamp()


def _period(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", text)
    if found is None or float(found[1]) < MINUTE_SECONDS:
        raise ValueError(
            f'Field aggregation.alignmentPeriod had an invalid value of "{text}": it must be at least '
            f"{MINUTE_SECONDS}s."
        )
    return float(found[1])


def _number(name: str, query: Mapping[str, str]) -> int:
    text = query.get(name, "") or "0"
    if not text.isdecimal():
        raise ValueError(f'Field {name} had an invalid value of "{text}".')
    return int(text)
