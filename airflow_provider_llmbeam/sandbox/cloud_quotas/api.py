"""Cloud Quotas' REST API: what a project may use of models with a published quota, and of accelerators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from airflow_provider_llmbeam.sandbox.billing.gpus import GPUS
from airflow_provider_llmbeam.sandbox.cloud_quotas.published import (
    GPU_QUOTAS,
    RATE_QUOTAS,
    VERTEX,
    GpuQuota,
    RateQuota,
    base_model,
    rate_quotas,
)
from airflow_provider_llmbeam.sandbox.core.backend import Backend
from airflow_provider_llmbeam.sandbox.core.resource_filter import paged
from airflow_provider_llmbeam.sandbox.core.responses import Reply, json_reply
from airflow_provider_llmbeam.sandbox.core.rest import STATUSES, RestCall, RestError, Route, Service, StatusWording
from airflow_provider_llmbeam.sandbox.monitoring.api import Monitoring
from airflow_provider_llmbeam.sandbox.monitoring.gauges import GpuLimits
from airflow_provider_llmbeam.sandbox.vertex.checks import project_number

UNLIMITED = "-1"
LOCATIONS = frozenset({"global"}).union(*(gpu.vertex_locations for gpu in GPUS))
"""Where models can be asked for what concerns quotas."""
WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        403: "Permission 'cloudquotas.quotas.get' denied on resource (or it may not exist).",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=RestError(
        429,
        "Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of service "
        "'cloudquotas.googleapis.com'.",
    ),
)
_INFOS = r"/v1/projects/(?P<project>[^/]+)/locations/global/services/(?P<service>[^/]+)/quotaInfos"


class CloudQuotas:
    """The methods of Cloud Quotas.

    Args:
        backend: What is allowed.
        monitoring: Which models have a published quota.
        gpu_quota: Location and accelerator to number; None is without limit.
    """

    def __init__(self, backend: Backend, monitoring: Monitoring, gpu_quota: GpuLimits | None) -> None:
        self._backend = backend
        self._monitoring = monitoring
        self._gpu_quota = gpu_quota

    def routes(self) -> list[Route]:
        """Return the methods and where they are found."""
        one = re.compile(rf"{_INFOS}/(?P<quota>[^/]+)")
        return [
            Route(verb="GET", pattern=re.compile(_INFOS), method="cloudquotas.quotaInfos.list", work=self._list),
            Route(verb="GET", pattern=one, method="cloudquotas.quotaInfos.get", work=self._get),
        ]

    def _list(self, call: RestCall) -> Reply:
        return json_reply(paged(call, "quotaInfos", self._infos(call), is_filtered=False))

    def _get(self, call: RestCall) -> Reply:
        for info in self._infos(call):
            if info["quotaId"] == call.names["quota"]:
                return json_reply(info)
        raise RestError(404, f"Quota info {call.names['quota']!r} of {call.names['service']} was not found.")

    def _infos(self, call: RestCall) -> list[dict[str, Any]]:
        service = call.names["service"]
        parent = f"projects/{project_number(call.names['project'])}/locations/global/services/{service}"
        found = [
            _info(parent, quota.id, service, quota.metric, quota.title, ["region"], self._of_gpus(quota))
            for quota in GPU_QUOTAS
            if quota.service == service
        ]
        for quota in RATE_QUOTAS if service == VERTEX else ():
            dimensions = self._of_models(quota)
            if dimensions:
                info = _info(
                    parent,
                    quota.id,
                    service,
                    f"{VERTEX}/{quota.metric}",
                    quota.title,
                    ["region", "base_model"],
                    dimensions,
                )
                found.append(info | {"refreshInterval": "minute"})
        return found

    def _of_gpus(self, quota: GpuQuota) -> list[dict[str, Any]]:
        limits = {
            place: own[quota.gpu.name] for place, own in (self._gpu_quota or {}).items() if quota.gpu.name in own
        }
        told = [_dimensions({"region": place}, limit, [place]) for place, limit in sorted(limits.items())]
        others = sorted(quota.locations - limits.keys())
        return [*told, _dimensions({}, None if self._gpu_quota is None else 0, others)]

    def _of_models(self, quota: RateQuota) -> list[dict[str, Any]]:
        """Return what is told of each base model: first locations with a quota of their own, then all others."""
        asked, quotas, now = self._monitoring.asked(), self._backend.quotas, float("inf")
        places: dict[str, set[str]] = {}
        for model, locations in asked.items():
            if quota in rate_quotas(model):
                places.setdefault(base_model(model), set()).update(locations)
        special = sorted(quotas.locations)
        found = [
            _dimensions({"region": place, "base_model": name}, quota.limit(quotas.at(now, place)), [place])
            for name in sorted(places)
            for place in special
        ]
        usual = quota.limit(quotas.at(now))
        for name, locations in sorted(places.items()):
            found.append(
                _dimensions({"base_model": name}, usual, sorted((LOCATIONS | locations).difference(special)))
            )
        return found


def routes(backend: Backend, quotas: CloudQuotas) -> list[web.RouteDef]:
    """Return the routes of Cloud Quotas."""
    service = Service(backend, WORDING, quotas.routes(), is_slow=False)
    return [
        web.get("/v1/projects/{project}/locations/global/services/{service}/quotaInfos{tail:.*}", service.serve)
    ]


def _info(
    parent: str,
    quota_id: str,
    service: str,
    metric: str,
    title: str,
    dimensions: list[str],
    told: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "name": f"{parent}/quotaInfos/{quota_id}",
        "quotaId": quota_id,
        "metric": metric,
        "service": service,
        "isPrecise": True,
        "containerType": "PROJECT",
        "dimensions": dimensions,
        "metricDisplayName": title,
        "quotaDisplayName": title,
        "metricUnit": "1",
        "isFixed": False,
        "dimensionsInfos": told,
    }


def _dimensions(names: Mapping[str, str], limit: int | None, locations: list[str]) -> dict[str, Any]:
    told: dict[str, Any] = {"dimensions": dict(names)} if names else {}
    value = UNLIMITED if limit is None else str(limit)
    details = {"value": value} if limit != 0 else {}  # as JSON of Google's APIs leaves a 0 out
    return told | {"details": details, "applicableLocations": locations}
