"""Cloud Monitoring: time series of a metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_llmbeam.hooks.google.base import GoogleHook
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest
from airflow_provider_llmbeam.hooks.google.rest import GoogleRest

HOST = "https://monitoring.googleapis.com"
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


class MonitoringReader:
    """Reads metrics of one project.

    Args:
        hook: Hook with the credentials and the project.
        rest: Client; made from `hook` if omitted.
    """

    def __init__(self, hook: GoogleHook, rest: GoogleRest | None = None) -> None:
        self._hook = hook
        self._rest = rest or GoogleRest(hook)

    def series(
        self,
        metric: str,
        where: Mapping[str, str],
        *,
        start: float,
        end: float,
        aligner: str = "ALIGN_DELTA",
        reducer: str = "REDUCE_SUM",
        group_by: Sequence[str] = (),
        period_seconds: int = _PERIOD_SECONDS,
    ) -> list[Series]:
        """Reads the time series of a metric.

        Args:
            metric: Type of the metric.
            where: Labels and their values, e.g. `{"resource.labels.location": "global"}`.
            start: Start of the window, in seconds of the Unix epoch.
            end: End of the window, in seconds of the Unix epoch.
            aligner: `perSeriesAligner` of `projects.timeSeries.list`.
            reducer: `crossSeriesReducer`, over the series of one group.
            group_by: Labels by which the series are grouped.
            period_seconds: Period of one point.

        Raises:
            CloudError: See `google_cloud.errors`.
        """
        wanted = [f'{label} = "{_quoted(value)}"' for label, value in {"metric.type": metric, **where}.items()]
        params: dict[str, Any] = {
            "filter": " AND ".join(wanted),
            "interval.startTime": _timestamp(start),
            "interval.endTime": _timestamp(end),
            "aggregation.alignmentPeriod": f"{period_seconds}s",
            "aggregation.perSeriesAligner": aligner,
            "aggregation.crossSeriesReducer": reducer,
            "aggregation.groupByFields": list(group_by),
        }
        project = self._hook.project
        request = CloudRequest(
            action=f"show metric {metric!r}",
            project=project,
            service="monitoring.googleapis.com",
            role="roles/monitoring.viewer",
            missing=f"metric {metric!r}",
        )
        pages = self._rest.pages(f"{HOST}/v3/projects/{project}/timeSeries", params, request)
        return [_series(one) for reply in pages for one in reply.get("timeSeries", ())]


def _series(data: Mapping[str, Any]) -> Series:
    labels = {**data.get("resource", {}).get("labels", {}), **data.get("metric", {}).get("labels", {})}
    points = tuple((_seconds(point["interval"]["endTime"]), _value(point["value"])) for point in data["points"])
    return Series(labels, points)


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _value(value: Mapping[str, Any]) -> float:
    if "distributionValue" in value:
        return float(value["distributionValue"].get("mean", 0.0))
    return float(next(iter(value.values())))  # int64 values are strings


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
