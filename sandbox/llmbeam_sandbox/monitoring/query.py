"""The parameters of `timeSeries.list`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from llmbeam_sandbox.monitoring.catalog import RESOURCES, Metric
from llmbeam_sandbox.monitoring.filter import Selection, read_field, read_filter
from llmbeam_sandbox.monitoring.time_series import MINUTE_SECONDS, Aggregation

NO_COMBINATION = (
    "The supplied filter does not specify a valid combination of metric and monitored resource descriptors. The "
    "query will not return any time series."
)
MAX_RESULTS = 100_000
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
        selection: Selected series.
        start: Start of the interval, exclusive, in seconds since the epoch.
        end: End of the interval, inclusive, in seconds since the epoch.
        aggregation: Aggregation of the series.
        has_points: Whether points are returned, not only headers.
        page_size: Points per page, or series per page without points.
        skipped: Number of points or series on the pages before.
    """

    selection: Selection
    start: float
    end: float
    aggregation: Aggregation
    has_points: bool
    page_size: int
    skipped: int

    def fits(self, metric: Metric) -> bool:
        """Returns whether a metric has the resource and the labels of the query."""
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
    """Reads the parameters of a call.

    Args:
        query: First value by parameter.
        repeated: All values by parameter.

    Raises:
        ValueError: A parameter is missing, invalid or not emulated.
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
        page_size=min(_number("pageSize", query) or MAX_RESULTS, MAX_RESULTS),
        skipped=_number("pageToken", query),
    )


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
