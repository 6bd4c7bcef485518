"""The state of the emulated Cloud Monitoring: traffic, gaps, published quotas and gauges. No HTTP."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

from llmbeam_sandbox.billing.state import Bill
from llmbeam_sandbox.cloud_quotas.published import has_published_quota
from llmbeam_sandbox.core.checks import project_number
from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.core.records import REQUEST_TYPES, RequestLog, RequestType
from llmbeam_sandbox.models.server import ModelServer
from llmbeam_sandbox.monitoring.catalog import (
    CATALOG,
    CONSUMER_QUOTA,
    ENDPOINT,
    LOCATION,
    PREFIX,
    WAITING,
    Metric,
)
from llmbeam_sandbox.monitoring.gauges import Gauge, of_accelerators, of_endpoints, rate_limits
from llmbeam_sandbox.monitoring.query import Query
from llmbeam_sandbox.monitoring.time_series import MINUTE_SECONDS, Table
from llmbeam_sandbox.monitoring.traffic import (
    ANY_PROJECT,
    Traffic,
    counted,
    minute_of,
    publisher_labels,
    traffic_of,
)
from llmbeam_sandbox.vertex.state import VertexState

DEFAULT_DELAY_SECONDS = 180.0
"""Source: https://cloud.google.com/monitoring/api/metrics_gcp: 150 s for `quota/…`, 120 to 360 s for the rest."""
ALLOCATION_SECONDS = 6 * 3600.0
"""Interval between samples of the quota of accelerators, at 0, 6, 12 and 18 h UTC."""


class Monitoring:
    """The metrics of the emulated cloud, and how a test changes them. Safe to use from any thread.

    Args:
        models: Server of all models: its requests and quotas.
        state: Endpoints of Vertex AI, and the quota of accelerators.
        bill: Charges for accelerators.
        delay_seconds: Delay after the end of a minute until its points are visible, in seconds, >= 0.

    Raises:
        ValueError: The delay is negative.
    """

    def __init__(
        self,
        models: ModelServer,
        state: VertexState,
        bill: Bill,
        *,
        delay_seconds: float,
    ) -> None:
        if not delay_seconds >= 0:
            raise ValueError(f"`monitoring_delay_seconds` must be >= 0; got {delay_seconds!r}.")
        self.delay_seconds = delay_seconds
        self._models = models
        self._clock: Clock = models.backend.now
        self._log: RequestLog = models.backend.log
        self._state = state
        self._bill = bill
        self._gpu_quota = state.settings.gpu_quota
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
        """Adds past requests of other clients to the metrics of every project; no quota is charged for them.

        Args:
            model: Model name of the requests.
            location: Region, or "global".
            minutes: Number of whole minutes, >= 1.
            until: Time in seconds since the epoch; the last minute ends then, or less than a minute before. None
                is now.
            requests_per_minute: Rate of answered requests, >= 0; with a fraction some minutes have one more.
            rejected_per_minute: Rate of additional requests that were answered 429, >= 0.
            failed_per_minute: Rate of additional requests that were answered 503, >= 0.
            input_tokens: Input tokens of each answered request.
            output_tokens: Output tokens of each answered request.
            first_token_seconds: Time to the first token of each answered request, in seconds.
            request_type: "shared", "dedicated" or "spillover".
            endpoint: Id of the endpoint; None is the publisher's model.

        Raises:
            ValueError: A value is outside these bounds.
        """
        rates = {200: requests_per_minute, 429: rejected_per_minute, 503: failed_per_minute}
        if minutes < 1 or not all(rate >= 0 for rate in rates.values()):
            raise ValueError(f"`minutes` must be >= 1 and rates >= 0; got {minutes!r} and {list(rates.values())}.")
        if request_type not in REQUEST_TYPES:
            raise ValueError(f"`request_type` must be one of {', '.join(REQUEST_TYPES)}; got {request_type!r}.")
        first = minute_of(self._clock() if until is None else until) - minutes * MINUTE_SECONDS
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
        """Hides points of metrics.

        Args:
            metric: Part of the metrics' types, e.g. "token_count"; "" is all metrics.
            start: Start of the gap, exclusive, in seconds since the epoch.
            end: End of the gap, inclusive, in seconds since the epoch.
        """
        with self._lock:
            self._hidden.append((metric, start, end))

    def provision(self, model: str, *, location: str = "global", tokens_per_second: int) -> None:
        """Provisions throughput from now on; requests beyond it spill over.

        Args:
            model: Model name of the requests.
            location: Region, or "global".
            tokens_per_second: Rate of input and output tokens, >= 1.

        Raises:
            ValueError: The number is below 1.
        """
        if tokens_per_second < 1:
            raise ValueError(f"`tokens_per_second` must be >= 1; got {tokens_per_second!r}.")
        with self._lock:
            bought = self._provisions.setdefault((model, location), [])
            bought.append((self._clock(), tokens_per_second))
        self._models.provisioned.provision(model, location, tokens_per_second)

    def publish_quota(self, model: str, is_published: bool = True) -> None:
        """Sets whether metrics and Cloud Quotas publish a quota of a model."""
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
        """Sets a gauge of an endpoint, which need not exist.

        Args:
            metric: "replicas", "target_replicas", "accelerator/duty_cycle" or `catalog.WAITING`.
            value: Value of the gauge, 0 to 1 for the duty cycle.
            endpoint: Id of the endpoint.
            location: Region of the endpoint.
            since: Time of the first sample with this value, in seconds since the epoch.

        Raises:
            ValueError: There is no such gauge.
        """
        found = CATALOG.get(metric if metric == WAITING else f"{PREFIX}prediction/online/{metric}")
        if found is None or found.kind != "GAUGE":
            raise ValueError(
                f"`metric` must be replicas, target_replicas or accelerator/duty_cycle; got {metric!r}."
            )
        sample = value if found.value_type == "DOUBLE" else int(value)
        with self._lock:
            self._gauges.setdefault((metric, location, endpoint), []).append((since, sample))

    def has_published_quota(self, model: str) -> bool:
        """Returns whether metrics and Cloud Quotas publish a quota of a model."""
        return self._published.get(model, has_published_quota(model))

    def requested_models(self) -> dict[str, set[str]]:
        """Returns the models with a published quota that were requested or published, and their locations."""
        found: dict[str, set[str]] = {}
        for one in self._traffic(None):
            if not one.endpoint and self.has_published_quota(one.model):
                found.setdefault(one.model, set()).add(one.location)
        with self._lock:
            named = [model for model, is_published in self._published.items() if is_published]
        everywhere = self._models.quotas.locations | {"global"}
        for model in named:
            found.setdefault(model, set()).update(everywhere)
        return found

    def clear(self) -> None:
        """Removes all changes of tests."""
        with self._lock:
            for held in (self._added, self._hidden):
                held.clear()
            for known in (self._provisions, self._published, self._gauges):
                known.clear()

    def table(self, metric: Metric, project: str, query: Query) -> Table:
        """Returns the series of a metric in a project that a query selects, as late as the service shows them."""
        visible = self._clock() - self.delay_seconds
        start, end = query.start, min(query.end, visible)
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
            if query.selection.matches(one.labels, one.resource)
        ]
        found = [one for one in shown if one.points]
        return Table(kind=metric.kind, value_type=metric.value_type, series=found)

    def _traffic(self, project: str | None) -> list[Traffic]:
        """Returns the requests of a project; None is all projects."""
        with self._lock:
            added = list(self._added)
        logged = traffic_of(self._log)
        if project is not None:
            logged = [one for one in logged if project_number(one.project) == project_number(project)]
        return [*added, *logged]

    def _gauges_of(self, metric: Metric, project: str, traffic: list[Traffic]) -> list[Gauge]:
        name = metric.type.removeprefix(PREFIX)
        if metric.kind != "GAUGE":
            return []
        if metric.resource_type == LOCATION:
            return [*rate_limits(name.split("/")[1], self._models.quotas, self.requested_models(), project)]
        if metric.resource_type == CONSUMER_QUOTA:
            what = name.partition("/quota/")[2]
            return [*of_accelerators(what, self._bill, self._gpu_quota, project)] if what != "exceeded" else []
        if metric.resource_type == ENDPOINT:
            return self._endpoint_gauges(name.partition("/online/")[2], project, traffic)
        if metric.type == WAITING:
            return self._queues(project)
        with self._lock:
            bought = {key: list(values) for key, values in self._provisions.items()}
        return [
            Gauge(labels={}, resource=publisher_labels(project, location, model), value=_latest(values))
            for (model, location), values in bought.items()
        ]

    def _queues(self, project: str) -> list[Gauge]:
        """Returns the gauges of queues that a test has set; the emulated servers have none."""
        with self._lock:
            known = {key[1:]: _latest(values) for key, values in self._gauges.items() if key[0] == WAITING}
        return [
            Gauge(
                labels={"endpoint_id": endpoint, "deployed_model_id": "1"},
                resource={"project_id": project, "location": location},
                value=value,
            )
            for (location, endpoint), value in known.items()
        ]

    def _endpoint_gauges(self, what: str, project: str, traffic: list[Traffic]) -> list[Gauge]:
        with self._lock:
            overrides = {key[1:]: _latest(values) for key, values in self._gauges.items() if key[0] == what}
        found = []
        for gauge in of_endpoints(what, self._state, traffic, project):
            own = overrides.pop((gauge.resource["location"], gauge.resource["endpoint_id"]), None)
            found.append(gauge if own is None else _overridden(gauge, own))
        for (location, endpoint), value in overrides.items():
            resource = {"resource_container": project, "location": location, "endpoint_id": endpoint}
            found.append(Gauge(labels={"deployed_model_id": "1"}, resource=resource, value=value))
        return found


def _latest(values: list[tuple[float, Any]]) -> Any:
    def value(at: float) -> Any:
        until_then = [value for since, value in values if since <= at]
        return until_then[-1] if until_then else None

    return value


def _overridden(gauge: Gauge, own: Any) -> Gauge:
    def value(at: float) -> Any:
        override = own(at)
        return gauge.value(at) if override is None else override

    return replace(gauge, value=value)
