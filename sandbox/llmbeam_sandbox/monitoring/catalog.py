"""The metrics of the emulated Cloud Monitoring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmbeam_sandbox.cloud_quotas.published import RATE_QUOTAS
from llmbeam_sandbox.monitoring.time_series import Kind, ValueType

PREFIX = "aiplatform.googleapis.com/"
PUBLISHER_MODEL, LOCATION, ENDPOINT = f"{PREFIX}PublisherModel", f"{PREFIX}Location", f"{PREFIX}Endpoint"
CONSUMER_QUOTA = "consumer_quota"
PROMETHEUS = "prometheus_target"
WAITING = "prometheus.googleapis.com/vertex_vllm_num_requests_waiting/gauge"
"""Source of its labels: docs.cloud.google.com/vertex-ai/docs/predictions/view-autometrics."""
RESOURCES: Mapping[str, frozenset[str]] = {
    PUBLISHER_MODEL: frozenset(
        {"resource_container", "location", "publisher", "model_user_id", "model_version_id"}
    ),
    LOCATION: frozenset({"resource_container", "location"}),
    ENDPOINT: frozenset({"resource_container", "location", "endpoint_id"}),
    CONSUMER_QUOTA: frozenset({"project_id", "service", "location"}),
    PROMETHEUS: frozenset({"project_id", "location", "cluster", "namespace", "job", "instance"}),
}
"""Labels by type of resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        type: Full type.
        kind: Kind of its points.
        value_type: Type of its points' values.
        resource_type: Type of its resource, a key of `RESOURCES`.
        labels: Labels of the metric.
    """

    type: str
    kind: Kind
    value_type: ValueType
    resource_type: str
    labels: frozenset[str]


def _metric(name: str, kind: Kind, value_type: ValueType, resource_type: str, labels: str) -> Metric:
    return Metric(
        type=name if name.startswith(("serviceruntime.", "prometheus.")) else f"{PREFIX}{name}",
        kind=kind,
        value_type=value_type,
        resource_type=resource_type,
        labels=frozenset(labels.split()),
    )


_SERVING, _ONLINE, _RUNTIME = (
    "publisher/online_serving/",
    "prediction/online/",
    "serviceruntime.googleapis.com/quota/",
)
_QUOTA: tuple[tuple[str, Kind, str], ...] = (
    ("limit", "GAUGE", "base_model limit_name"),
    ("usage", "DELTA", "base_model limit_name method"),
    ("exceeded", "DELTA", "base_model limit_name"),
)
# Source: https://cloud.google.com/monitoring/api/metrics_gcp; labels for which the sandbox has no
# values are omitted.
_METRICS = (
    _metric(
        f"{_SERVING}model_invocation_count",
        "DELTA",
        "INT64",
        PUBLISHER_MODEL,
        "response_code error_category request_type method",
    ),
    _metric(f"{_SERVING}token_count", "DELTA", "INT64", PUBLISHER_MODEL, "type request_type"),
    _metric(f"{_SERVING}first_token_latencies", "DELTA", "DISTRIBUTION", PUBLISHER_MODEL, "request_type"),
    _metric(
        f"{_SERVING}model_invocation_latencies",
        "DELTA",
        "DISTRIBUTION",
        PUBLISHER_MODEL,
        "request_type latency_type",
    ),
    _metric(f"{_SERVING}consumed_token_throughput", "DELTA", "INT64", PUBLISHER_MODEL, "request_type"),
    _metric(f"{_SERVING}dedicated_token_limit", "GAUGE", "INT64", PUBLISHER_MODEL, ""),
    *(
        _metric(f"quota/{quota.metric}/{what}", kind, "INT64", LOCATION, labels)
        for quota in RATE_QUOTAS
        for what, kind, labels in _QUOTA
    ),
    _metric(f"{_ONLINE}response_count", "DELTA", "INT64", ENDPOINT, "deployed_model_id response_code"),
    _metric(f"{_ONLINE}error_count", "DELTA", "INT64", ENDPOINT, "deployed_model_id"),
    _metric(f"{_ONLINE}replicas", "GAUGE", "INT64", ENDPOINT, "deployed_model_id"),
    _metric(f"{_ONLINE}target_replicas", "GAUGE", "INT64", ENDPOINT, "deployed_model_id"),
    _metric(f"{_ONLINE}accelerator/duty_cycle", "GAUGE", "DOUBLE", ENDPOINT, "deployed_model_id"),
    _metric(WAITING, "GAUGE", "DOUBLE", PROMETHEUS, "endpoint_id deployed_model_id"),
    _metric(f"{_RUNTIME}limit", "GAUGE", "INT64", CONSUMER_QUOTA, "quota_metric limit_name"),
    _metric(f"{_RUNTIME}allocation/usage", "GAUGE", "INT64", CONSUMER_QUOTA, "quota_metric"),
    _metric(f"{_RUNTIME}rate/net_usage", "DELTA", "INT64", CONSUMER_QUOTA, "quota_metric method"),
    _metric(f"{_RUNTIME}exceeded", "GAUGE", "INT64", CONSUMER_QUOTA, "quota_metric limit_name"),
)
CATALOG: Mapping[str, Metric] = {metric.type: metric for metric in _METRICS}
"""Metrics by type."""
