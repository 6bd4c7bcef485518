"""Sampled metrics of Cloud Monitoring: limits, replicas, duty cycles of accelerators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from llmbeam_sandbox.billing.settings import GpuLimits
from llmbeam_sandbox.billing.state import VERTEX, Bill
from llmbeam_sandbox.cloud_quotas.published import (
    GPU_QUOTAS,
    GpuQuota,
    RateQuota,
    base_model,
    rate_quotas,
)
from llmbeam_sandbox.cloud_quotas.published import VERTEX as VERTEX_SERVICE
from llmbeam_sandbox.core.checks import project_number
from llmbeam_sandbox.models.quota import LocationQuotas
from llmbeam_sandbox.monitoring.time_series import MINUTE_SECONDS, Point, Series
from llmbeam_sandbox.monitoring.traffic import Traffic, minute_of
from llmbeam_sandbox.vertex.state import Deployed, Endpoint, VertexState

MAX_POINTS = 3000
"""Number of points of a gauge in a reply, the newest ones: two days, minute by minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A value at any time.

    Attributes:
        labels: Labels of the metric.
        resource: Labels of the resource.
        value: Returns the value at a time in seconds since the epoch, or None without a value.
    """

    labels: Mapping[str, str]
    resource: Mapping[str, str]
    value: Callable[[float], int | float | None]

    def sampled(self, start: float, end: float, every_seconds: float) -> Series:
        """Returns its values at multiples of `every_seconds`, after `start` and up to `end`."""
        last, first = math.floor(end / every_seconds), math.floor(start / every_seconds) + 1
        times = [count * every_seconds for count in range(max(first, last - MAX_POINTS), last + 1)]
        values = [(at, self.value(at)) for at in times]
        points = [Point(start=at, end=at, value=value) for at, value in values if value is not None]
        return Series(labels=self.labels, resource=self.resource, points=points)


def rate_limits(
    metric: str, quotas: LocationQuotas, models: Mapping[str, Iterable[str]], project: str
) -> Iterator[Gauge]:
    """Yields the limits per minute of models with a published quota.

    Args:
        metric: Metric of the quota, e.g. "online_prediction_requests_per_base_model".
        quotas: Current and earlier quotas of all locations.
        models: Locations by model.
        project: Project in the labels.
    """
    seen = set()
    for model, locations in models.items():
        for quota in rate_quotas(model):
            for location in locations if quota.metric == metric else ():
                if (base_model(model), location) in seen:
                    continue
                seen.add((base_model(model), location))
                yield Gauge(
                    labels={"base_model": base_model(model), "limit_name": quota.id},
                    resource={"resource_container": project, "location": location},
                    value=_limit(quotas, quota, location),
                )


def of_endpoints(what: str, state: VertexState, traffic: Iterable[Traffic], project: str) -> Iterator[Gauge]:
    """Yields replicas, target replicas or duty cycles of the deployed models.

    Args:
        what: "replicas", "target_replicas" or "accelerator/duty_cycle".
        state: State of Vertex AI.
        traffic: Requests, from which the duty cycle is computed.
        project: Project in the labels.
    """
    busy: dict[tuple[str, str, float], float] = {}
    for one in traffic:
        key = (one.endpoint, one.deployed, minute_of(one.at) + MINUTE_SECONDS)
        busy[key] = busy.get(key, 0.0) + one.seconds * one.count
    with state.timeline.settled():
        mine = f"projects/{project_number(project)}/"
        found = [
            (endpoint, deployed)
            for name, endpoint in state.endpoints.items()
            if name.startswith(mine)
            for deployed in endpoint.deployed.values()
        ]
    for endpoint, deployed in found:
        if what == "accelerator/duty_cycle" and deployed.hardware.gpu is None:
            continue
        own = endpoint.name.rpartition("/")[2]
        yield Gauge(
            labels={"deployed_model_id": deployed.id},
            resource={"resource_container": project, "location": endpoint.location, "endpoint_id": own},
            value=_endpoint_value(what, endpoint, deployed, busy),
        )


def of_accelerators(what: str, bill: Bill, limits: GpuLimits | None, project: str) -> Iterator[Gauge]:
    """Yields limits or usage of the project's quota of accelerators.

    Args:
        what: "limit" or "allocation/usage".
        bill: Charges, from which the usage is computed.
        limits: Quota of accelerators; None is no limit, which has no series.
        project: Project in the labels.
    """
    for quota in GPU_QUOTAS:
        used = _used(bill, quota, project)
        known = {place: own.get(quota.gpu.name, 0) for place, own in (limits or {}).items()}
        for location in sorted(known if what == "limit" else {*known, *used}):
            labels = {"quota_metric": quota.metric} | ({"limit_name": quota.id} if what == "limit" else {})
            resource = {"project_id": project, "service": quota.service, "location": location}
            if what == "limit":
                yield Gauge(labels=labels, resource=resource, value=_always(known[location]))
            else:
                yield Gauge(labels=labels, resource=resource, value=_in_use(used.get(location, [])))


def _limit(quotas: LocationQuotas, quota: RateQuota, location: str) -> Callable[[float], int | None]:
    return lambda at: quota.limit(quotas.at(at, location))


def _always(value: int) -> Callable[[float], int]:
    return lambda at: value


def _endpoint_value(
    what: str, endpoint: Endpoint, deployed: Deployed, busy: Mapping[tuple[str, str, float], float]
) -> Callable[[float], int | float | None]:
    replicas, own = deployed.hardware.replicas, endpoint.name.rpartition("/")[2]

    def value(at: float) -> int | float | None:
        if at < deployed.created_at:
            return None
        if what == "target_replicas":
            return replicas
        is_up = deployed.deployed_at is not None and deployed.deployed_at <= at
        if what == "replicas":
            return replicas if is_up else 0
        return min(1.0, busy.get((own, deployed.id, at), 0.0) / MINUTE_SECONDS / replicas) if is_up else None

    return value


def _used(bill: Bill, quota: GpuQuota, project: str) -> dict[str, list[tuple[float, float, int]]]:
    """Returns the accelerators in use by location: start, end and number of each charge."""
    found: dict[str, list[tuple[float, float, int]]] = {}
    for charge in (*bill.lines, *bill.running) if quota.is_used else ():
        is_vertex = charge.kind == VERTEX
        if charge.gpu != quota.gpu.name or is_vertex != (quota.service == VERTEX_SERVICE):
            continue
        if project_number(charge.project) == project_number(project):
            until = float("inf") if charge.until is None else charge.until
            found.setdefault(charge.location, []).append((charge.since, until, charge.gpus))
    return found


def _in_use(rented: Iterable[tuple[float, float, int]]) -> Callable[[float], int]:
    return lambda at: sum(gpus for since, until, gpus in rented if since <= at < until)
