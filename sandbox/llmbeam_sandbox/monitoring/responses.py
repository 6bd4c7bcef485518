"""Time series and errors in the format of Cloud Monitoring."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from llmbeam_sandbox.core.rest import STATUSES, RestError, StatusWording
from llmbeam_sandbox.monitoring.catalog import Metric
from llmbeam_sandbox.monitoring.query import Query
from llmbeam_sandbox.monitoring.time_series import Distribution, Point, Series, Table, Value

WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        403: "Permission monitoring.timeSeries.list denied (or the resource may not exist).",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=RestError(
        429,
        "Quota exceeded for quota metric 'Time series queries' and limit 'Time series queries per minute' of "
        "service 'monitoring.googleapis.com'.",
    ),
)


def page_of(metric: Metric, table: Table, query: Query) -> dict[str, Any]:
    """Returns a page as the API returns it: newest points first, a series on several pages if necessary."""
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
    """Returns a time as the API writes it."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="auto" if seconds % 1 else "seconds")
    return text.replace("+00:00", "Z")


def _page(shown: list[dict[str, Any]], query: Query, count: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"timeSeries": shown} if shown else {}
    end = query.skipped + query.page_size
    return fields | ({"nextPageToken": str(end)} if end < count else {})


def _fields(metric: Metric, table: Table, series: Series, points: Sequence[Point] | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "metric": {"type": metric.type, "labels": dict(series.labels)},
        "resource": {"type": metric.resource_type, "labels": dict(series.resource)},
        "metricKind": table.kind,
        "valueType": table.value_type,
    }
    if points is not None:
        fields["points"] = [
            {
                "interval": {"startTime": rfc3339(point.start), "endTime": rfc3339(point.end)},
                "value": _value(point.value, table),
            }
            for point in points
        ]
    return fields


def _value(value: Value, table: Table) -> dict[str, Any]:
    if isinstance(value, Distribution):
        return {"distributionValue": value.fields()}
    return {"doubleValue": float(value)} if table.value_type == "DOUBLE" else {"int64Value": str(int(value))}
