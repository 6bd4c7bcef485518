"""Cloud Monitoring's REST API of time series: what the sandbox served, as late as the real service tells it."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from airflow_provider_llmbeam.sandbox.billing.bill import Bill
from airflow_provider_llmbeam.sandbox.cloud_quotas.published import has_published_quota
from airflow_provider_llmbeam.sandbox.core.backend import Backend
from airflow_provider_llmbeam.sandbox.core.responses import Reply, json_reply
from airflow_provider_llmbeam.sandbox.core.rest import STATUSES, RestCall, RestError, Route, Service, StatusWording
from airflow_provider_llmbeam.sandbox.monitoring.catalog import (
    CATALOG,
    CONSUMER_QUOTA,
    ENDPOINT,
    LOCATION,
    PREFIX,
    Metric,
)
from airflow_provider_llmbeam.sandbox.monitoring.gauges import (
    Gauge,
    GpuLimits,
    of_accelerators,
    of_endpoints,
    rate_limits,
)
from airflow_provider_llmbeam.sandbox.monitoring.query import NO_COMBINATION, Query, page_of, read_query
from airflow_provider_llmbeam.sandbox.monitoring.time_series import MINUTE_SECONDS, Table, aggregated
from airflow_provider_llmbeam.sandbox.monitoring.traffic import (
    ANY_PROJECT,
    REQUEST_TYPES,
    RequestType,
    Traffic,
    counted,
    minute_of,
    provisioned,
    publisher_labels,
    traffic_of,
)
from airflow_provider_llmbeam.sandbox.vertex.checks import project_number
from airflow_provider_llmbeam.sandbox.vertex.state import VertexState

DEFAULT_DELAY_SECONDS = 180.0
"""Source: https://cloud.google.com/monitoring/api/metrics_gcp: 150 s for `quota/…`, 120 to 360 s for the rest."""
ALLOCATION_SECONDS = 6 * 3600.0
"""How often the quota of accelerators is sampled, on the hours 0, 6, 12 and 18 UTC."""
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


class Monitoring:
    """What the metrics of the emulated cloud show, and how a test changes that. Safe to use from any thread.

    Args:
        backend: What was asked, and the clock.
        state: Endpoints of Vertex AI.
        bill: Accelerators in use.
        delay_seconds: How long after its minute a point is seen, >= 0.
        gpu_quota: Location and accelerator to number; None is without limit.

    Raises:
        ValueError: The delay is negative.
    """

    def __init__(
        self,
        backend: Backend,
        state: VertexState,
        bill: Bill,
        *,
        delay_seconds: float,
        gpu_quota: GpuLimits | None,
    ) -> None:
        if not delay_seconds >= 0:
            raise ValueError(f"`monitoring_delay_seconds` must be >= 0; got {delay_seconds!r}.")
        self.delay_seconds = delay_seconds
        self._backend = backend
        self._state = state
        self._bill = bill
        self._gpu_quota = gpu_quota
        self._lock = threading.Lock()
        self._added: list[Traffic] = []
        self._hidden: list[tuple[str, float, float]] = []
        self._provisions: dict[tuple[str, str], list[tuple[float, int]]] = {}
        self._published: dict[str, bool] = {}
        self._gauges: dict[tuple[str, str, str], list[tuple[float, float]]] = {}

    def add_traffic(
        self,
        model: str,
        *,
        location: str = "global",
        minutes: int,
        until: float | None = None,
        requests_per_minute: float,
        rejected_per_minute: float = 0.0,
        failed_per_minute: float = 0.0,
        input_tokens: int = 100,
        output_tokens: int = 20,
        first_token_seconds: float = 0.3,
        request_type: RequestType = "shared",
        endpoint: str | None = None,
    ) -> None:
        """Put past requests of a neighbour in every project into the metrics; no quota is charged for them.

        Args:
            model: As asked for.
            location: Region, or "global".
            minutes: Of the clock, whole ones, >= 1.
            until: The last of them ends here or less than a minute before, in seconds since the epoch; None is
                now.
            requests_per_minute: That were answered, >= 0; of a fraction some minutes have one more.
            rejected_per_minute: Further ones, answered 429, >= 0.
            failed_per_minute: Further ones, answered 503, >= 0.
            input_tokens: Of each request that was answered.
            output_tokens: Of each request that was answered.
            first_token_seconds: Of each request that was answered.
            request_type: "shared", "dedicated" or "spillover".
            endpoint: Id of the endpoint that was asked; None is the publisher's model.

        Raises:
            ValueError: A value is outside these bounds.
        """
        rates = {200: requests_per_minute, 429: rejected_per_minute, 503: failed_per_minute}
        if minutes < 1 or not all(rate >= 0 for rate in rates.values()):
            raise ValueError(f"`minutes` must be >= 1 and rates >= 0; got {minutes!r} and {list(rates.values())}.")
        if request_type not in REQUEST_TYPES:
            raise ValueError(f"`request_type` must be one of {', '.join(REQUEST_TYPES)}; got {request_type!r}.")
        first = minute_of(self._backend.now() if until is None else until) - minutes * MINUTE_SECONDS
        made = []
        for number in range(minutes):
            for http_status, rate in rates.items():
                # The margin keeps 0.1 * 30 at 3.
                count = math.floor((number + 1) * rate + 1e-9) - math.floor(number * rate + 1e-9)
                answered = count if http_status == 200 else 0
                one = Traffic(
                    at=first + number * MINUTE_SECONDS,
                    project=ANY_PROJECT,
                    location=location,
                    model=model,
                    endpoint=endpoint or "",
                    method="Predict" if endpoint or "embedding" in model else "GenerateContent",
                    http_status=http_status,
                    count=count,
                    input_tokens=input_tokens * answered,
                    output_tokens=output_tokens * answered,
                    seconds=first_token_seconds if answered else 0.0,
                    request_type=request_type,
                )
                made += [one] if count else []
        with self._lock:
            self._added += made

    def hide(self, metric: str, *, start: float = 0.0, end: float = math.inf) -> None:
        """Make a gap: points are not shown.

        Args:
            metric: Part of the type of the metrics, e.g. "token_count"; "" is all.
            start: Points that end later than this, in seconds since the epoch.
            end: Points that end up to this, in seconds since the epoch.
        """
        with self._lock:
            self._hidden.append((metric, start, end))

    def provision(self, model: str, *, location: str = "global", tokens_per_second: int) -> None:
        """Buy throughput: from now on it serves so much of what is asked, and the rest spills over.

        Args:
            model: As asked for.
            location: Region, or "global".
            tokens_per_second: Input and output, >= 1.

        Raises:
            ValueError: The number is below 1.
        """
        if tokens_per_second < 1:
            raise ValueError(f"`tokens_per_second` must be >= 1; got {tokens_per_second!r}.")
        with self._lock:
            bought = self._provisions.setdefault((model, location), [])
            bought.append((self._backend.now(), tokens_per_second))

    def publish_quota(self, model: str, is_published: bool = True) -> None:
        """Say whether a model has a quota of its own that metrics and Cloud Quotas tell of."""
        with self._lock:
            self._published[model] = is_published

    def set_gauge(
        self,
        metric: str,
        value: float,
        *,
        endpoint: str,
        location: str = "us-central1",
        since: float = 0.0,
    ) -> None:
        """Have an endpoint report something else, also one that is not there.

        Args:
            metric: "replicas", "target_replicas" or "accelerator/duty_cycle".
            value: From 0 to 1 for the duty cycle.
            endpoint: Its id.
            location: Its region.
            since: Samples from here on, in seconds since the epoch.

        Raises:
            ValueError: There is no such gauge.
        """
        found = CATALOG.get(f"{PREFIX}prediction/online/{metric}")
        if found is None or found.kind != "GAUGE":
            raise ValueError(
                f"`metric` must be replicas, target_replicas or accelerator/duty_cycle; got {metric!r}."
            )
        told = value if found.value_type == "DOUBLE" else int(value)
        with self._lock:
            self._gauges.setdefault((metric, location, endpoint), []).append((since, told))

    def has_published_quota(self, model: str) -> bool:
        """Return whether metrics and Cloud Quotas tell of a model's quota."""
        return self._published.get(model, has_published_quota(model))

    def asked(self) -> dict[str, set[str]]:
        """Return the models with a published quota that were asked or named, and where."""
        found: dict[str, set[str]] = {}
        for one in self._traffic(None):
            if not one.endpoint and self.has_published_quota(one.model):
                found.setdefault(one.model, set()).add(one.location)
        with self._lock:
            named = [model for model, is_published in self._published.items() if is_published]
        everywhere = self._backend.quotas.locations | {"global"}
        for model in named:
            found.setdefault(model, set()).update(everywhere)
        return found

    def clear(self) -> None:
        """Forget what a test has changed."""
        with self._lock:
            for held in (self._added, self._hidden):
                held.clear()
            for known in (self._provisions, self._published, self._gauges):
                known.clear()

    def time_series(self, call: RestCall) -> Reply:
        """Answer `timeSeries.list`."""
        try:
            query = read_query(call.query, call.repeated)
        except ValueError as error:
            raise RestError(400, str(error)) from error
        selection = query.selection
        metric = CATALOG.get(selection.metric_type)
        if metric is None:
            raise RestError(
                404,
                f'Cannot find metric(s) that match type = "{selection.metric_type}". If a metric was created '
                "recently, it could take up to 10 minutes to become available. Please try again soon.",
            )
        if not query.fits(metric):
            raise RestError(400, NO_COMBINATION)
        table = self._table(metric, call.names["project"], query)
        try:
            table = aggregated(table, query.aggregation, query.end)
            return json_reply(page_of(metric, table, query))
        except ValueError as error:
            raise RestError(400, str(error)) from error

    def _table(self, metric: Metric, project: str, query: Query) -> Table:
        seen = self._backend.now() - self.delay_seconds
        start, end = query.start, min(query.end, seen)
        traffic = self._traffic(project)
        every = ALLOCATION_SECONDS if metric.resource_type == CONSUMER_QUOTA else MINUTE_SECONDS
        series = counted(metric, traffic, project=project, is_published=self.has_published_quota)
        series += [gauge.sampled(start, end, every) for gauge in self._gauges_of(metric, project, traffic)]
        with self._lock:
            gaps = [(low, high) for part, low, high in self._hidden if part in metric.type]
        shown = [
            replace(
                one,
                points=[
                    point
                    for point in one.points
                    if start < point.end <= end and not any(low < point.end <= high for low, high in gaps)
                ],
            )
            for one in series
            if query.selection.takes(one.labels, one.resource)
        ]
        found = [one for one in shown if one.points]
        return Table(kind=metric.kind, value_type=metric.value_type, series=found)

    def _traffic(self, project: str | None) -> list[Traffic]:
        """Return what was asked in a project; None is all of them."""
        with self._lock:
            added, bought = list(self._added), {key: list(values) for key, values in self._provisions.items()}
        limits = {key: values[-1][1] for key, values in bought.items()}
        logged = traffic_of(self._backend.log)
        if project is not None:
            logged = [one for one in logged if project_number(one.project) == project_number(project)]
        before = [one for one in logged if not _is_after(one, bought)]
        after = [one for one in logged if _is_after(one, bought)]
        return [*added, *before, *provisioned(after, limits)]

    def _gauges_of(self, metric: Metric, project: str, traffic: list[Traffic]) -> list[Gauge]:
        name = metric.type.removeprefix(PREFIX)
        if metric.kind != "GAUGE":
            return []
        if metric.resource_type == LOCATION:
            return [*rate_limits(name.split("/")[1], self._backend.quotas, self.asked(), project)]
        if metric.resource_type == CONSUMER_QUOTA:
            what = name.partition("/quota/")[2]
            return [*of_accelerators(what, self._bill, self._gpu_quota, project)] if what != "exceeded" else []
        if metric.resource_type == ENDPOINT:
            return self._endpoint_gauges(name.partition("/online/")[2], project, traffic)
        with self._lock:
            bought = {key: list(values) for key, values in self._provisions.items()}
        return [
            Gauge(labels={}, resource=publisher_labels(project, location, model), value=_latest(values))
            for (model, location), values in bought.items()
        ]

    def _endpoint_gauges(self, what: str, project: str, traffic: list[Traffic]) -> list[Gauge]:
        with self._lock:
            told = {key[1:]: _latest(values) for key, values in self._gauges.items() if key[0] == what}
        found = []
        for gauge in of_endpoints(what, self._state, traffic, project):
            own = told.pop((gauge.resource["location"], gauge.resource["endpoint_id"]), None)
            found.append(gauge if own is None else _instead(gauge, own))
        for (location, endpoint), value in told.items():
            resource = {"resource_container": project, "location": location, "endpoint_id": endpoint}
            found.append(Gauge(labels={"deployed_model_id": "1"}, resource=resource, value=value))
        return found


def routes(backend: Backend, monitoring: Monitoring) -> list[web.RouteDef]:
    """Return the route of Cloud Monitoring."""
    path = "/v3/projects/{project}/timeSeries"
    pattern = re.compile(r"/v3/projects/(?P<project>[^/]+)/timeSeries")
    found = Route(verb="GET", pattern=pattern, method="monitoring.timeSeries.list", work=monitoring.time_series)
    service = Service(backend, WORDING, [found], is_slow=True)
    return [web.get(path, service.serve)]


def _is_after(one: Traffic, bought: Mapping[tuple[str, str], list[tuple[float, int]]]) -> bool:
    values = bought.get((one.model, one.location))
    return values is not None and one.at >= values[0][0]


def _latest(values: list[tuple[float, Any]]) -> Any:
    def value(at: float) -> Any:
        told = [value for since, value in values if since <= at]
        return told[-1] if told else None

    return value


def _instead(gauge: Gauge, own: Any) -> Gauge:
    def value(at: float) -> Any:
        told = own(at)
        return gauge.value(at) if told is None else told

    return replace(gauge, value=value)
