"""Evidence from the metrics of Cloud Monitoring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Unpack

from airflow_provider_llmbeam.exceptions import CloudNotFoundError
from airflow_provider_llmbeam.hooks.google.base import GoogleHook
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest
from airflow_provider_llmbeam.hooks.google.rest import GoogleRest
from airflow_provider_llmbeam.quota.evidence import Allowance, Dedicated, Serving, Traffic, Unit
from airflow_provider_llmbeam.transport.monitoring import (
    PREDICTION,
    WAITING,
    Aggregation,
    Series,
    read_series,
    time_series_params,
    time_series_url,
)

_VERTEX = "aiplatform.googleapis.com"
_ONLINE = f"{_VERTEX}/publisher/online_serving"
_SERVICE_RUNTIME = "serviceruntime.googleapis.com/quota"
#: Delay after which a minute is complete; quotas after 150 s, endpoints after 120 to 360 s
#: (docs.cloud.google.com/monitoring/api/metrics_gcp). A window that ended later would show too few requests.
DELAY_SECONDS = 180.0
#: Length of the window: long enough for `MIN_SAMPLE` requests at a low rate, short enough to be recent.
WINDOW_SECONDS = 600.0
#: The usual time to the first token is that of the day before the window.
USUAL_SECONDS = 24 * 3600.0
#: Limits and allocations are sampled a few times a day; read by the hour they are 48 points instead of 2,880.
SPARSE_SECONDS, SPARSE_PERIOD_SECONDS = 48 * 3600.0, 3600


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
        **how: Unpack[Aggregation],
    ) -> list[Series]:
        """Reads the time series of a metric.

        Args:
            metric: Type of the metric.
            where: Labels and their values, e.g. `{"resource.labels.location": "global"}`.
            start: Start of the window, in seconds of the Unix epoch.
            end: End of the window, in seconds of the Unix epoch.
            **how: See `transport.monitoring.Aggregation`.

        Raises:
            CloudError: See `hooks.google.errors`.
        """
        params = time_series_params(metric, where, start=start, end=end, **how)
        project = self._hook.project
        request = CloudRequest(
            action=f"show metric {metric!r}",
            project=project,
            service="monitoring.googleapis.com",
            role="roles/monitoring.viewer",
            missing=f"metric {metric!r}",
        )
        pages = self._rest.pages(time_series_url(project), params, request)
        return [one for reply in pages for one in read_series(reply)]


@dataclass(frozen=True, slots=True)
class Window:
    """Start and end of a window, in seconds of the Unix epoch."""

    start: float
    end: float

    @classmethod
    def visible(cls, now: float) -> Window:
        """Returns the last complete minutes."""
        end = (now - DELAY_SECONDS) // 60 * 60
        return cls(end - WINDOW_SECONDS, end)


class QuotaMetrics:
    """Reads evidence of one location.

    Args:
        reader: Reads the metrics of one project.
        location: Google Cloud location.
        now: Seconds of the Unix epoch.
    """

    def __init__(self, reader: MonitoringReader, location: str, now: float) -> None:
        self._reader = reader
        self._here = {"resource.labels.location": location}
        self._window = Window.visible(now)
        self._now = now

    def traffic(self, model: str, *, with_tokens: bool) -> Traffic | None:
        """Returns the recent requests to a publisher's model; `None` if there are none.

        Args:
            model: Model ID, e.g. `gemini-3.5-flash-lite`.
            with_tokens: Whether to read tokens, too.
        """
        where = {"resource.labels.model_user_id": model, **self._here}
        found = self._read(
            f"{_ONLINE}/model_invocation_count",
            where,
            group_by=("metric.labels.response_code", "metric.labels.error_category"),
        )
        if not found:
            return None
        tokens = self._read(f"{_ONLINE}/token_count", where) if with_tokens else []
        return Traffic(
            invocations=round(_sum(found)),
            rejected=round(_sum(filter(_is_rejected, found))),
            failed=round(_sum(filter(_is_failed, found))),
            peak_requests_per_minute=_peak(each for each in found if each.labels.get("response_code") == "200"),
            peak_tokens_per_minute=_peak(tokens) if tokens else None,
            first_token_seconds=self._first_token(where, self._window),
            usual_first_token_seconds=self._first_token(
                where, Window(self._window.start - USUAL_SECONDS, self._window.start)
            ),
            until=_until(found),
        )

    def allowance(self, metric: str, unit: Unit, limit: float, base_model: str) -> Allowance:
        """Returns the usage of a published limit.

        Args:
            metric: Quota metric, e.g. `aiplatform.googleapis.com/online_prediction_requests_per_base_model`.
            unit: Unit that the quota counts.
            limit: Limit per minute.
            base_model: Name of the model in the quota.
        """
        where = {"metric.labels.base_model": base_model, **self._here}
        prefix = f"{_VERTEX}/quota/{metric.rpartition('/')[2]}"
        used = self._read(f"{prefix}/usage", where)
        exceeded = self._read(f"{prefix}/exceeded", where)
        return Allowance(
            name=metric.rpartition("/")[2],
            unit=unit,
            limit=limit,
            used=_peak(used) if used else None,
            exceeded=round(_sum(exceeded)),
            until=_until(used) if used else None,
        )

    def published_limit(self, metric: str, base_model: str) -> float | None:
        """Returns a limit from Cloud Monitoring, for use if Cloud Quotas has none."""
        where = {"metric.labels.base_model": base_model, **self._here}
        name = f"{_VERTEX}/quota/{metric}/limit"
        return _newest(self._read_sparse(name, where))

    def dedicated(self, model: str) -> Dedicated | None:
        """Returns the Provisioned Throughput of a model; `None` if there is none."""
        where = {"resource.labels.model_user_id": model, **self._here}
        limit = _newest(self._read(f"{_ONLINE}/dedicated_token_limit", where, aligner="ALIGN_NEXT_OLDER"))
        if not limit:
            return None
        group_by = ("metric.labels.request_type",)
        found = self._read(f"{_ONLINE}/consumed_token_throughput", where, group_by=group_by)
        own = [each for each in found if each.labels.get("request_type") == "dedicated"]
        spilled = [each for each in found if each.labels.get("request_type") == "spillover"]
        return Dedicated(
            limit_tokens_per_second=limit,
            used_tokens_per_second=_peak(own) / 60 if own else None,
            spilled_tokens=_sum(spilled),
            until=_until(found) if found else None,
        )

    def serving(self, endpoint_id: str) -> Serving | None:
        """Returns the state of an endpoint; `None` if there is no data."""
        where = {"resource.labels.endpoint_id": endpoint_id, **self._here}
        responses = self._read(f"{PREDICTION}/response_count", where, group_by=("metric.labels.response_code",))
        refused, failed = (
            round(_sum(each for each in responses if each.labels.get("response_code", "").startswith(digit)))
            for digit in "45"
        )
        gauges = {
            name: self._read(f"{PREDICTION}/{name}", where, aligner="ALIGN_NEXT_OLDER", reducer=reducer)
            for name, reducer in (
                ("replicas", "REDUCE_SUM"),
                ("target_replicas", "REDUCE_SUM"),
                ("accelerator/duty_cycle", "REDUCE_MEAN"),
            )
        }
        waiting = self._read(WAITING, {"metric.labels.endpoint_id": endpoint_id}, aligner="ALIGN_NEXT_OLDER")
        series = [*responses, *(each for found in gauges.values() for each in found)]
        if not series:
            return None
        return Serving(
            replicas=_newest(gauges["replicas"]),
            target_replicas=_newest(gauges["target_replicas"]),
            responses=round(_sum(responses)),
            refused=refused,
            failed=failed,
            duty_cycle=_newest(gauges["accelerator/duty_cycle"]),
            waiting=_newest(waiting),
            until=_until(series),
        )

    def allocated(self, metric: str, service: str) -> tuple[float, float] | None:
        """Returns the usage of an allocated resource and its time; `None` if there is no data."""
        where = {"metric.labels.quota_metric": metric, "resource.labels.service": service, **self._here}
        found = self._read_sparse(f"{_SERVICE_RUNTIME}/allocation/usage", where)
        used = _newest(found)
        return None if used is None else (used, _until(found))

    def _first_token(self, where: Mapping[str, str], window: Window) -> float | None:
        found = self._read(
            f"{_ONLINE}/first_token_latencies",
            where,
            aligner="ALIGN_PERCENTILE_95",
            reducer="REDUCE_MEAN",
            window=window,
            period_seconds=round(window.end - window.start),
        )
        milliseconds = _newest(found)
        return None if milliseconds is None else milliseconds / 1000

    def _read(
        self,
        metric: str,
        where: Mapping[str, str],
        *,
        window: Window | None = None,
        **how: Unpack[Aggregation],
    ) -> list[Series]:
        read = window or self._window
        try:
            found = self._reader.series(metric, where, start=read.start, end=read.end, **how)
        except CloudNotFoundError:  # a metric without data in this project
            return []
        return [each for each in found if each.points]

    def _read_sparse(self, metric: str, where: Mapping[str, str]) -> list[Series]:
        return self._read(
            metric,
            where,
            aligner="ALIGN_NEXT_OLDER",
            reducer="REDUCE_MAX",
            window=Window(self._now - SPARSE_SECONDS, self._now),
            period_seconds=SPARSE_PERIOD_SECONDS,
        )


def _is_rejected(series: Series) -> bool:
    labels = series.labels
    return labels.get("response_code") == "429" or labels.get("error_category") == "capacity"


def _is_failed(series: Series) -> bool:
    return series.labels.get("response_code", "").startswith("5") and not _is_rejected(series)


def _sum(found: Iterable[Series]) -> float:
    return sum(value for series in found for _, value in series.points)


def _peak(found: Iterable[Series]) -> float:
    """Returns the largest sum of all series in one minute."""
    minutes: dict[float, float] = {}
    for series in found:
        for end, value in series.points:
            minutes[end] = minutes.get(end, 0.0) + value
    return max(minutes.values(), default=0.0)


def _newest(found: Iterable[Series]) -> float | None:
    points = [point for series in found for point in series.points]
    return max(points)[1] if points else None


def _until(found: Iterable[Series]) -> float:
    return max(end for series in found for end, _ in series.points)
