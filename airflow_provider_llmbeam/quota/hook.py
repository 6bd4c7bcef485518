"""Hook for quota health: reads all evidence and judges it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from airflow_provider_llmbeam.exceptions import CloudError, CloudUnavailableError, JobSpecError
from airflow_provider_llmbeam.hooks.google.base import GoogleHook
from airflow_provider_llmbeam.hooks.google.rest import GoogleRest
from airflow_provider_llmbeam.hooks.probe import Probe
from airflow_provider_llmbeam.quota.cloud_quotas import UNLIMITED, QuotaLimit, accelerator_need, read_limits
from airflow_provider_llmbeam.quota.evidence import (
    SERVER,
    STATED,
    Accelerators,
    Allowance,
    Evidence,
    Situation,
    Traffic,
    Unit,
)
from airflow_provider_llmbeam.quota.health import QuotaHealth, judge
from airflow_provider_llmbeam.quota.metrics import MonitoringReader, QuotaMetrics
from airflow_provider_llmbeam.quota.server_queue import fetch_queue
from airflow_provider_llmbeam.spec.endpoint import CloudRunEndpoint, VertexEndpoint
from airflow_provider_llmbeam.spec.facts import SHARED_POOL
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import (
    Model,
    OpenAIModel,
    VertexEndpointModel,
)

VERTEX = "aiplatform.googleapis.com"
_T = TypeVar("_T")

#: Interval between reads of the limits: there are hundreds of them, and they are changed by hand.
LIMITS_SECONDS = 600.0
#: Prefix of a metric's name, by location; regional metrics have none.
_PREFIXES = {"global": "global_", "eu": "eu_multi_region_", "us": "us_multi_region_"}


_USED = re.compile(
    r"(global_|eu_multi_region_|us_multi_region_)?(generate_content|online_prediction|embed_content)_"
    r"(requests_per_(minute_per_project_per_)?base_model|(?P<kind>input_|output_)?(?P<tokens>tokens)_per_minute_per_base_model)"
)


class QuotaHook(GoogleHook):
    """Returns the quota health of a model, or of a planned endpoint.

    The hook sends no request to a model: the caller passes the result of `hooks.probe.Prober` if it has one.

    Args:
        model: Model; or
        endpoint: Endpoint to be provisioned.
        limits: Limits of the job; its rates count as the quota if none is published.
        project: Billed project; by default that of the model or endpoint, the connection or the credentials.
        gcp_conn_id: Airflow connection of type `google_cloud_platform`.
        impersonation_chain: Service account to impersonate, or a chain of them.
        now: Seconds of the Unix epoch.

    Raises:
        AccessDeniedError: There is no connection of that name.
    """

    def __init__(
        self,
        model: Model | None = None,
        endpoint: VertexEndpoint | CloudRunEndpoint | None = None,
        limits: Limits | None = None,
        project: str | None = None,
        gcp_conn_id: str = GoogleHook.default_conn_name,
        impersonation_chain: str | Sequence[str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        of_target = project_of(model) if endpoint is None else endpoint.project
        super().__init__(project or of_target, gcp_conn_id, impersonation_chain)
        self._model = model
        self._endpoint = endpoint
        self._limits = limits or Limits()
        self._now = now
        self._rest = GoogleRest(self)
        self._published: dict[str, tuple[float, list[QuotaLimit]]] = {}

    def health(self, location: str = "", probe: Probe | None = None) -> QuotaHealth:
        """Judges one location.

        Evidence that cannot be read, for lack of permission or of a reply, is missing and not an error; the
        sentence says so. Only for accelerators, which have no other evidence, it is an error.

        Args:
            location: Google Cloud location; empty if there is none.
            probe: Replies to probe requests.

        Raises:
            CloudError: The account may not read the quota for accelerators.
            JobSpecError: The accelerators of the endpoint, or the project, are not known.
        """
        return judge(self.evidence(location, probe), self._now())

    def evidence(self, location: str = "", probe: Probe | None = None) -> Evidence:
        """Reads the evidence of one location; see `health`."""
        if self._endpoint is not None:
            return self._of_accelerators(self._endpoint, location)
        if self._model is None:
            raise JobSpecError("Quota health needs a `model` or an `endpoint`; got neither.")
        model, situation = self._model, situation_of(self._model)
        found = Evidence(
            situation=situation,
            what=f"{model.name} in {location!r}" if location else model.name,
            location=location,
            probe=probe,
        )
        if isinstance(model, VertexEndpointModel):
            notes: list[str] = []
            endpoint_id = model.endpoint.rpartition("/")[2]
            serving = _readable(notes, lambda: self._metrics(location).serving(endpoint_id))
            return replace(found, serving=serving, unreadable=tuple(notes))
        if situation in ("shared_pool", "published_quota"):
            return self._of_publisher(model, found)
        queue = None
        if isinstance(model, OpenAIModel):
            queue = fetch_queue(model, self.gcp_conn_id, self.impersonation_chain)
        allowances = (*self._read_stated(None), *_stated_by_server(probe))
        return replace(found, allowances=allowances, queue=queue)

    def _of_publisher(self, model: Model, found: Evidence) -> Evidence:
        """Adds the evidence of a model that Google or a partner serves."""
        notes: list[str] = []
        name, metrics = model.name.rpartition("/")[2], self._metrics(found.location)
        with_tokens = self._limits.tokens_per_minute is not None
        seen = _readable(notes, lambda: (metrics.traffic(name, with_tokens=with_tokens), metrics.dedicated(name)))
        traffic, dedicated = seen or (None, None)
        allowances = self._read_stated(traffic)
        if found.situation == "published_quota":
            base = base_model(model)
            limits = _readable(notes, lambda: self._read_published_limits(found.location, base)) or {}
            if seen is not None:
                read = _readable(notes, lambda: self._allowances(metrics, limits, found.location, base))
                allowances += read or ()
            else:
                allowances += tuple(
                    Allowance(name=metric.rpartition("/")[2], unit=unit_of(metric) or "requests", limit=limit)
                    for metric, limit in limits.items()
                )
        return replace(found, traffic=traffic, dedicated=dedicated, allowances=allowances, unreadable=tuple(notes))

    def _allowances(
        self, metrics: QuotaMetrics, limits: Mapping[str, float], location: str, base: str
    ) -> tuple[Allowance, ...]:
        """Returns the published limits, of Cloud Quotas or else of Cloud Monitoring, with their usage."""
        known = dict(limits)
        if not known:
            for metric in _usual_metrics(location):
                if (limit := metrics.published_limit(metric, base)) is not None:
                    known[metric] = limit
        return tuple(
            metrics.allowance(metric, unit, limit, base)
            for metric, limit in known.items()
            if (unit := unit_of(metric)) is not None
        )

    def _read_published_limits(self, location: str, base: str) -> dict[str, float]:
        """Returns the limits per minute of a model in Cloud Quotas, by metric."""
        prefix = _PREFIXES.get(location, "")
        found: dict[str, QuotaLimit] = {}
        for each in self._limits_of(VERTEX):
            name = each.metric.rpartition("/")[2]
            is_of_here = name.startswith(prefix) if prefix else not name.startswith(tuple(_PREFIXES.values()))
            is_used = unit_of(name) is not None and each.interval in ("", "minute")
            if not is_used or not is_of_here or not each.holds(location, base):
                continue
            if name not in found or each.narrowness > found[name].narrowness:
                found[name] = each
        return {name: each.value for name, each in found.items() if each.value != UNLIMITED}

    def _read_stated(self, traffic: Traffic | None) -> tuple[Allowance, ...]:
        """Returns the limits that the user states."""
        used = (traffic.peak_requests_per_minute, traffic.peak_tokens_per_minute) if traffic else (None, None)
        rates: tuple[tuple[Unit, float | None, float | None], ...] = (
            ("requests", self._limits.requests_per_minute, used[0]),
            ("tokens", self._limits.tokens_per_minute, used[1]),
        )
        return tuple(
            Allowance(name=STATED, unit=unit, limit=limit, used=peak, until=traffic.until if traffic else None)
            for unit, limit, peak in rates
            if limit is not None
        )

    def _of_accelerators(self, endpoint: VertexEndpoint | CloudRunEndpoint, location: str) -> Evidence:
        notes: list[str] = []
        need = accelerator_need(endpoint)
        found = Evidence(situation="accelerators", what=f"{need.kind} in {location!r}", location=location)
        try:
            limits = self._limits_of(need.service)
        except CloudUnavailableError as error:
            limits = []
            notes.append(str(error))
        here = [each for each in limits if each.metric == need.metric and each.holds(location)]
        limit = max(here, key=lambda each: each.narrowness).value if here else None
        metrics = self._metrics(location)
        used = _readable(notes, lambda: metrics.allocated(need.metric, need.service))
        accelerators = Accelerators(
            name=need.metric.rpartition("/")[2],
            limit=math.inf if limit == UNLIMITED else limit,
            used=used[0] if used else None,
            wanted=need.count,
            until=used[1] if used else None,
        )
        return replace(found, accelerators=accelerators, unreadable=tuple(notes))

    def _limits_of(self, service: str) -> list[QuotaLimit]:
        read_at, limits = self._published.get(service, (-math.inf, []))
        if self._now() - read_at > LIMITS_SECONDS:
            limits = read_limits(self, service, self._rest)
            self._published[service] = (self._now(), limits)
        return limits

    def _metrics(self, location: str) -> QuotaMetrics:
        return QuotaMetrics(MonitoringReader(self, self._rest), location, self._now())


def _stated_by_server(probe: Probe | None) -> tuple[Allowance, ...]:
    if probe is None:
        return ()
    return tuple(
        Allowance(name=SERVER, unit=cast("Unit", unit), limit=limit, used=used, until=probe.at)
        for unit, (limit, used) in probe.limits.items()
    )


def situation_of(model: Model) -> Situation:
    """Returns what serves a model."""
    if isinstance(model, VertexEndpointModel):
        return "own_endpoint"
    if model.project is None:
        return "unpublished_quota"
    return "shared_pool" if SHARED_POOL.match(model.name.rpartition("/")[2]) else "published_quota"


def project_of(model: Model | None) -> str | None:
    """Returns the project that is billed for a model; `None` if the model does not name one."""
    return None if model is None else model.project


def base_model(model: Model) -> str:
    """Returns the name of a model in quotas: without version, and for some providers with the publisher.

    text-embedding-005 has that of its predecessor.

    Source: 429s of Vertex AI that public issues quote, such as "Quota exceeded for
    aiplatform.googleapis.com/online_prediction_requests_per_base_model with base model: textembedding-gecko".
    """
    versionless = re.sub(r"(@.*|-\d{3})$", "", model.name.rpartition("/")[2])
    return model.api.quota_prefix + {"text-embedding": "textembedding-gecko"}.get(versionless, versionless)


def unit_of(metric: str) -> Unit | None:
    """Returns the unit that a quota counts; `None` if a job does not use it, e.g. flex requests."""
    match = _USED.fullmatch(metric.rpartition("/")[2])
    if match is None:
        return None
    tokens: dict[str | None, Unit] = {"input_": "input_tokens", "output_": "output_tokens", "": "tokens"}
    return "requests" if match["tokens"] is None else tokens[match["kind"] or ""]


def _usual_metrics(location: str) -> tuple[str, ...]:
    prefix = _PREFIXES.get(location, "")
    return (
        "generate_content_requests_per_minute_per_project_per_base_model",
        "generate_content_input_tokens_per_minute_per_base_model",
        f"{prefix}online_prediction_requests_per_base_model",
        f"{prefix}online_prediction_input_tokens_per_minute_per_base_model",
    )


def _readable(notes: list[str], read: Callable[[], _T]) -> _T | None:
    """Returns what `read` returns; adds a note and returns `None` if Google Cloud refuses or does not reply."""
    try:
        return read()
    except CloudError as error:
        if str(error) not in notes:
            notes.append(str(error))
        return None
