"""Cloud Quotas' REST API: the quotas of models with a published quota, and of accelerators."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from llmbeam_sandbox.billing.gpus import GPUS
from llmbeam_sandbox.billing.settings import GpuLimits
from llmbeam_sandbox.cloud_quotas.published import (
    GPU_QUOTAS,
    RATE_QUOTAS,
    VERTEX,
    GpuQuota,
    RateQuota,
    base_model,
    rate_quotas,
)
from llmbeam_sandbox.cloud_quotas.responses import WORDING, dimensions_info, quota_info
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.checks import project_number
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.resource_filter import paged
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service
from llmbeam_sandbox.models.server import ModelServer

METHODS = Methods(names=("cloudquotas.quotaInfos.get", "cloudquotas.quotaInfos.list"))
LOCATIONS = frozenset({"global"}).union(*(gpu.vertex_locations for gpu in GPUS))
"""Locations of models in quotas."""
_INFOS = r"/v1/projects/(?P<project>[^/]+)/locations/global/services/(?P<service>[^/]+)/quotaInfos"


class CloudQuotas:
    """The methods of Cloud Quotas.

    Args:
        models: Server of all models, which has their quotas.
        requested_models: Returns the models with a published quota, and their locations.
        gpu_quota: Quota of accelerators; None is no limit.
    """

    def __init__(
        self,
        models: ModelServer,
        requested_models: Callable[[], Mapping[str, set[str]]],
        gpu_quota: GpuLimits | None,
    ) -> None:
        self._models = models
        self._requested_models = requested_models
        self._gpu_quota = gpu_quota

    def routes(self) -> list[Route]:
        """Returns the methods and their paths."""
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
            quota_info(
                parent, quota.id, service, quota.metric, quota.title, ["region"], self._gpu_dimensions(quota)
            )
            for quota in GPU_QUOTAS
            if quota.service == service
        ]
        for quota in RATE_QUOTAS if service == VERTEX else ():
            dimensions = self._model_dimensions(quota)
            if dimensions:
                info = quota_info(
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

    def _gpu_dimensions(self, quota: GpuQuota) -> list[dict[str, Any]]:
        limits = {
            place: own[quota.gpu.name] for place, own in (self._gpu_quota or {}).items() if quota.gpu.name in own
        }
        infos = [dimensions_info({"region": place}, limit, [place]) for place, limit in sorted(limits.items())]
        others = sorted(quota.locations - limits.keys())
        return [*infos, dimensions_info({}, None if self._gpu_quota is None else 0, others)]

    def _model_dimensions(self, quota: RateQuota) -> list[dict[str, Any]]:
        """Returns the limits of each base model: first locations with a quota of their own, then all others."""
        models, quotas, now = self._requested_models(), self._models.quotas, float("inf")
        places: dict[str, set[str]] = {}
        for model, locations in models.items():
            if quota in rate_quotas(model):
                places.setdefault(base_model(model), set()).update(locations)
        special = sorted(quotas.locations)
        found = [
            dimensions_info({"region": place, "base_model": name}, quota.limit(quotas.at(now, place)), [place])
            for name in sorted(places)
            for place in special
        ]
        usual = quota.limit(quotas.at(now))
        for name, locations in sorted(places.items()):
            found.append(
                dimensions_info({"base_model": name}, usual, sorted((LOCATIONS | locations).difference(special)))
            )
        return found


def routes(backend: Backend, quotas: CloudQuotas) -> list[web.RouteDef]:
    """Returns the routes of Cloud Quotas."""
    service = Service(backend, WORDING, quotas.routes(), is_slow=False)
    return [
        web.get("/v1/projects/{project}/locations/global/services/{service}/quotaInfos{tail:.*}", service.serve)
    ]
