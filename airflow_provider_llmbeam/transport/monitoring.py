"""Time series of Cloud Monitoring: the parameters of a request, and its reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict, Unpack

HOST = "https://monitoring.googleapis.com"
#: Metrics of the endpoints of Vertex AI, by `endpoint_id` and `deployed_model_id`. Source: section aiplatform of
#: docs.cloud.google.com/monitoring/api/metrics_gcp_a_b
PREDICTION = "aiplatform.googleapis.com/prediction/online"
#: Requests that wait in the queue of vLLM on Vertex AI, which reads `/metrics` of the container. Sources:
#: docs.cloud.google.com/vertex-ai/docs/predictions/view-autometrics, `AutoscalingMetricSpec` (2026-11); gauges of
#: Managed Service for Prometheus end in `/gauge`.
WAITING = "prometheus.googleapis.com/vertex_vllm_num_requests_waiting/gauge"
_PERIOD_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Series:
    """One time series.

    Attributes:
        labels: Labels of the metric and of the resource by which the series are grouped.
        points: Pairs of end, in seconds of the Unix epoch, and value; the newest first.
    """

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class Aggregation(TypedDict, total=False):
    """How the series of a metric become points.

    Attributes:
        aligner: `perSeriesAligner`, by default the increase within a period.
        reducer: `crossSeriesReducer`, over the series of one group, by default their sum.
        group_by: Labels by which the series are grouped.
        period_seconds: Period of one point, by default a minute.
    """

    aligner: str
    reducer: str
    group_by: Sequence[str]
    period_seconds: int


def time_series_url(project: str) -> str:
    """Returns the address of the time series of a project."""
    return f"{HOST}/v3/projects/{project}/timeSeries"


def time_series_params(
    metric: str,
    where: Mapping[str, str],
    *,
    start: float,
    end: float,
    **how: Unpack[Aggregation],
) -> dict[str, Any]:
    """Returns the parameters of `projects.timeSeries.list`.

    Args:
        metric: Type of the metric.
        where: Labels and their values, e.g. `{"resource.labels.location": "global"}`.
        start: Start of the window, in seconds of the Unix epoch.
        end: End of the window, in seconds of the Unix epoch.
        **how: See `Aggregation`.
    """
    wanted = [f'{label} = "{_quote(value)}"' for label, value in {"metric.type": metric, **where}.items()]
    return {
        "filter": " AND ".join(wanted),
        "interval.startTime": _timestamp(start),
        "interval.endTime": _timestamp(end),
        "aggregation.alignmentPeriod": f"{how.get('period_seconds', _PERIOD_SECONDS)}s",
        "aggregation.perSeriesAligner": how.get("aligner", "ALIGN_DELTA"),
        "aggregation.crossSeriesReducer": how.get("reducer", "REDUCE_SUM"),
        "aggregation.groupByFields": list(how.get("group_by", ())),
    }


def read_series(reply: Mapping[str, Any]) -> Iterator[Series]:
    """Yields the time series of a reply."""
    for one in reply.get("timeSeries", ()):
        labels = {**one.get("resource", {}).get("labels", {}), **one.get("metric", {}).get("labels", {})}
        points = ((_seconds(point["interval"]["endTime"]), _value(point["value"])) for point in one["points"])
        yield Series(labels, tuple(points))


def _quote(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _value(value: Mapping[str, Any]) -> float:
    if "distributionValue" in value:
        return float(value["distributionValue"].get("mean", 0.0))
    return float(next(iter(value.values())))  # int64 values are strings


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
