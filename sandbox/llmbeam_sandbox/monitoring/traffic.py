"""Requests to models as Cloud Monitoring counts them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from llmbeam_sandbox.cloud_quotas.published import base_model, rate_quotas
from llmbeam_sandbox.core.records import RequestRecord, RequestType
from llmbeam_sandbox.monitoring.catalog import ENDPOINT, LOCATION, PREFIX, Metric
from llmbeam_sandbox.monitoring.time_series import (
    MINUTE_SECONDS,
    Point,
    Series,
    Value,
    added,
    distribution,
)

ANY_PROJECT = ""
_PLACE = re.compile(
    r"projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+)"
    r"(?:/endpoints/(?P<endpoint>[^/]+)(?:/deployedModels/(?P<deployed>[^/]+))?)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests to one model with the same outcome.

    Attributes:
        at: Time of the answers, in seconds since the epoch.
        project: Project in the path; `ANY_PROJECT` belongs to all projects.
        location: Region, or "global".
        model: Model name of the requests; for an endpoint, the deployed model.
        endpoint: Id of the endpoint; "" for a publisher's model.
        deployed: Id of the deployed model; "" without one.
        method: Method, e.g. "GenerateContent".
        http_status: Status of all answers.
        count: Number of requests.
        input_tokens: Input tokens of all requests.
        output_tokens: Output tokens of all requests.
        seconds: Time to the first token of each request, in seconds.
        request_type: Capacity that served them.
        limit_name: The limit of the quota that rejected them; "" when none did.
    """

    at: float
    project: str
    location: str
    model: str
    endpoint: str = ""
    deployed: str = ""
    method: str = "GenerateContent"
    http_status: int = 200
    count: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    request_type: RequestType = "shared"
    limit_name: str = ""

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


Rows = Callable[[Traffic], Iterable[tuple[dict[str, str], Value]]]


def traffic_of(records: Iterable[RequestRecord]) -> list[Traffic]:
    """Returns the requests of a log that Vertex AI's metrics count: answered requests to existing models."""
    found = []
    for record in records:
        if not record.method.startswith(("gemini.", "vertex.")) or record.method == "gemini.countTokens":
            continue
        place = _PLACE.fullmatch(record.resource)
        if place is None or record.answered_at is None or not (record.model or place["endpoint"]):
            continue
        method = record.method.partition(".")[2]
        found.append(
            Traffic(
                at=record.answered_at,
                project=place["project"],
                location=place["location"],
                model=record.model,
                endpoint=place["endpoint"] or "",
                deployed=place["deployed"] or "",
                method=method[:1].upper() + method[1:],
                http_status=record.http_status or 0,
                input_tokens=record.input_tokens,
                output_tokens=record.output_tokens,
                seconds=record.answered_at - record.received_at,
                limit_name=record.limit_name,
                request_type=record.request_type,
            )
        )
    return found


def counted(
    metric: Metric, traffic: Iterable[Traffic], *, project: str, is_published: Callable[[str], bool]
) -> list[Series]:
    """Returns the series of a metric that counts requests: a point for each minute with requests.

    Args:
        metric: Any metric; one that does not count requests has no series.
        traffic: Requests of one project.
        project: Project in the labels.
        is_published: Returns whether a model has a published quota.
    """
    rows = _rows(metric, is_published)
    keyed: dict[tuple[tuple[tuple[str, str], ...], ...], dict[float, list[Value]]] = {}
    for one in traffic:
        if bool(one.endpoint) != (metric.resource_type == ENDPOINT):
            continue
        resource = tuple(_resource(metric.resource_type, one, project).items())
        for labels, value in rows(one):
            minutes = keyed.setdefault((tuple(labels.items()), resource), {})
            minutes.setdefault(minute_of(one.at), []).append(value)
    return [
        Series(
            labels=dict(labels),
            resource=dict(resource),
            points=[
                Point(start=start, end=start + MINUTE_SECONDS, value=added(values))
                for start, values in sorted(minutes.items())
            ],
        )
        for (labels, resource), minutes in keyed.items()
    ]


def minute_of(at: float) -> float:
    """Returns the start of the minute that contains a time."""
    return at // MINUTE_SECONDS * MINUTE_SECONDS


def publisher_labels(project: str, location: str, model: str) -> dict[str, str]:
    """Returns the resource labels of a publisher's model."""
    name, _, version = model.partition("@")
    return {
        "resource_container": project,
        "location": location,
        "publisher": "google",
        "model_user_id": name,
        "model_version_id": version,
    }


def _resource(resource_type: str, one: Traffic, project: str) -> dict[str, str]:
    if resource_type == ENDPOINT:
        return {"resource_container": project, "location": one.location, "endpoint_id": one.endpoint}
    if resource_type == LOCATION:
        return {"resource_container": project, "location": one.location}
    return publisher_labels(project, one.location, one.model)


def _rows(metric: Metric, is_published: Callable[[str], bool]) -> Rows:
    name = metric.type.removeprefix(PREFIX)
    if name.startswith("quota/"):
        _, quota, what = name.split("/")
        return _quota_rows(quota, what, is_published)
    return _ROWS.get(name, lambda one: [])


def _quota_rows(metric: str, what: str, is_published: Callable[[str], bool]) -> Rows:
    def rows(one: Traffic) -> Iterable[tuple[dict[str, str], Value]]:
        quota = next((quota for quota in rate_quotas(one.model) if quota.metric == metric), None)
        if quota is None or not is_published(one.model):
            return
        labels = {"base_model": base_model(one.model), "limit_name": quota.id}
        is_rejected = one.http_status == 429
        if what == "usage" and not is_rejected:
            amount = one.input_tokens if quota.is_tokens else one.count
            if amount:
                yield labels | {"method": one.method}, amount
        if what == "exceeded" and is_rejected and quota.is_tokens == (one.limit_name == "tokens-per-minute"):
            yield labels, one.count

    return rows


def _category(http_status: int) -> str:
    if http_status == 429:
        return "capacity"
    return "" if http_status < 400 else "user" if http_status < 500 else "system"


def _tokens(one: Traffic) -> Iterable[tuple[dict[str, str], Value]]:
    for kind, tokens in (("input", one.input_tokens), ("output", one.output_tokens)):
        if tokens:
            yield {"type": kind, "request_type": one.request_type}, tokens


def _latencies(**labels: str) -> Rows:
    def rows(one: Traffic) -> Iterable[tuple[dict[str, str], Value]]:
        if one.http_status < 400:
            yield {"request_type": one.request_type, **labels}, distribution(one.seconds * 1000, one.count)

    return rows


def _invocations(one: Traffic) -> Iterable[tuple[dict[str, str], Value]]:
    labels = {
        "response_code": str(one.http_status),
        "error_category": _category(one.http_status),
        "request_type": one.request_type,
        "method": one.method,
    }
    yield labels, one.count


def _throughput(one: Traffic) -> Iterable[tuple[dict[str, str], Value]]:
    if one.tokens:
        yield {"request_type": one.request_type}, one.tokens


def _responses(one: Traffic) -> Iterable[tuple[dict[str, str], Value]]:
    yield {"deployed_model_id": one.deployed, "response_code": f"{one.http_status // 100}xx"}, one.count


def _errors(one: Traffic) -> Iterable[tuple[dict[str, str], Value]]:
    if one.http_status >= 400:
        yield {"deployed_model_id": one.deployed}, one.count


_ROWS: Mapping[str, Rows] = {
    "publisher/online_serving/model_invocation_count": _invocations,
    "publisher/online_serving/token_count": _tokens,
    "publisher/online_serving/first_token_latencies": _latencies(),
    "publisher/online_serving/model_invocation_latencies": _latencies(latency_type="model"),
    "publisher/online_serving/consumed_token_throughput": _throughput,
    "prediction/online/response_count": _responses,
    "prediction/online/error_count": _errors,
}
