"""What the GPUs of an endpoint on Vertex AI did while a job ran, from Cloud Monitoring."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.pipeline.reporting.report import Report, ServedModel, Serving
from airflow_provider_llmbeam.spec.model import VertexEndpointModel
from airflow_provider_llmbeam.transport.google_auth import default_credentials, token_request
from airflow_provider_llmbeam.transport.monitoring import (
    PREDICTION,
    WAITING,
    Series,
    read_series,
    time_series_params,
    time_series_url,
)

_log = logging.getLogger(__name__)

#: Share of the time that the GPUs of the advised replicas work.
_BUSY_RATIO = 0.8
#: Idle share below which more replicas are advised if requests wait.
_FULL_RATIO = 0.1
_TIMEOUT_SECONDS = 30.0
_DEPLOYED = "metric.labels.deployed_model_id"

#: Reads the time series of the parameters of a request.
Read = Callable[[Mapping[str, Any]], Iterable[Series]]


@dataclass(frozen=True)
class Minutes:
    """One deployed model, minute by minute: the keys are ends of minutes, in seconds of the Unix epoch.

    Attributes:
        busy: Share of the time in which its accelerators worked, 0 to 1.
        replicas: Number of replicas.
        waiting: Requests in the queues of its servers.
    """

    busy: Mapping[float, float]
    replicas: Mapping[float, float]
    waiting: Mapping[float, float]

    @property
    def gpu_minutes(self) -> float:
        """Minutes times replicas."""
        return sum(self.replicas.get(at, 1.0) for at in self.busy)

    @property
    def busy_minutes(self) -> float:
        """Those of them in which the accelerators worked."""
        return sum(ratio * self.replicas.get(at, 1.0) for at, ratio in self.busy.items())


def add_serving(report: Report, model: object) -> Report:
    """Returns a report with what the GPUs of its endpoint did; unchanged without an endpoint, or without figures.

    Cloud Monitoring shows a minute 2 to 6 minutes later: the last ones of a run are missing.
    """
    if not isinstance(model, VertexEndpointModel) or not report.requests.sent:
        return report
    try:
        minutes, responses = read_minutes(model, _open(model), report.started_at, report.finished_at)
    except Exception as error:  # noqa: BLE001 - the answers are published
        _log.warning("The report has no figures of the GPUs of %s: %s", model.endpoint, error)
        return report
    if not any(one.busy for one in minutes.values()):
        return report
    names = {own: model.deployed_models.get(own, model.name) for own in minutes}
    serving = Serving(
        models={
            own: ServedModel(
                name=names[own],
                responses=round(responses.get((own, ""), 0)),
                failed=round(responses.get((own, "5xx"), 0)),
                gpu_minutes=round(one.gpu_minutes, 1),
                idle_minutes=round(one.gpu_minutes - one.busy_minutes, 1),
                waiting=round(_mean(one.waiting.values()), 1) if one.waiting else None,
            )
            for own, one in sorted(minutes.items())
        },
        until=max(at for one in minutes.values() for at in one.busy),
        sentences=[describe(one, names[own] if len(minutes) > 1 else "") for own, one in sorted(minutes.items())],
    )
    series = report.series
    if series is not None:
        starts = [series.started_at + index * series.interval_seconds for index in range(len(series.answers))]
        busy = [_busy_of(minutes.values(), start, start + series.interval_seconds) for start in starts]
        series = series.model_copy(update={"gpu_busy": busy})
    return report.model_copy(update={"serving": serving, "series": series})


def read_minutes(
    model: VertexEndpointModel, read: Read, start: float, end: float
) -> tuple[dict[str, Minutes], dict[tuple[str, str], float]]:
    """Reads the metrics of an endpoint between two times.

    Args:
        model: The model on the endpoint.
        read: Reads time series.
        start: Seconds of the Unix epoch.
        end: Seconds of the Unix epoch.

    Returns:
        Each deployed model by its id; and the number of responses by this id and class of codes, "" for all.
    """
    _, _, _, location, _, own = model.endpoint.split("/")
    where = {"resource.labels.endpoint_id": own, "resource.labels.location": location}

    def by_model(
        metric: str, aligner: str, reducer: str, labels: Mapping[str, str]
    ) -> dict[str, dict[float, float]]:
        params = time_series_params(
            metric, labels, start=start, end=end, aligner=aligner, reducer=reducer, group_by=(_DEPLOYED,)
        )
        return {one.labels.get("deployed_model_id", ""): dict(one.points) for one in read(params)}

    busy = by_model(f"{PREDICTION}/accelerator/duty_cycle", "ALIGN_MEAN", "REDUCE_MEAN", where)
    replicas = by_model(f"{PREDICTION}/replicas", "ALIGN_NEXT_OLDER", "REDUCE_SUM", where)
    waiting = by_model(WAITING, "ALIGN_MEAN", "REDUCE_SUM", {"metric.labels.endpoint_id": own})
    codes = (_DEPLOYED, "metric.labels.response_code")
    counted = read(time_series_params(f"{PREDICTION}/response_count", where, start=start, end=end, group_by=codes))
    responses: dict[tuple[str, str], float] = {}
    for one in counted:
        for code in ("", one.labels.get("response_code", "")):
            key = (one.labels.get("deployed_model_id", ""), code)
            responses[key] = responses.get(key, 0.0) + sum(value for _, value in one.points)
    found = {key: Minutes(busy[key], replicas.get(key, {}), waiting.get(key, {})) for key in busy}
    return found, responses


def describe(minutes: Minutes, name: str = "") -> str:
    """Returns one sentence: the idle GPU minutes, and what follows for the number of replicas.

    Args:
        minutes: The deployed model.
        name: Its name, if there are several.
    """
    total, busy = minutes.gpu_minutes, minutes.busy_minutes
    idle = total - busy
    sentence = f"{f'{name}: ' if name else ''}{idle:.0f} of {total:.0f} GPU minutes were idle"
    length = len(minutes.busy)
    if not length:
        return f"{sentence}."
    replicas, needed = max(1, round(total / length)), max(1, math.ceil(busy / length / _BUSY_RATIO))
    waiting = _mean(minutes.waiting.values())
    if needed < replicas:
        return f"{sentence}: scale to {needed} {'replica' if needed == 1 else 'replicas'}."
    if waiting >= 1 and idle < _FULL_RATIO * total:
        return (
            f"{sentence}, and {waiting:.0f} requests waited in its queue: scale to {replicas + 1} replicas to "
            "finish earlier, for about the same GPU minutes."
        )
    if idle > (1 - _BUSY_RATIO) * total:
        return (
            f"{sentence}: scale to a smaller GPU, or send more requests at a time (limits.max_in_flight), as "
            f"{replicas} {'replica is' if replicas == 1 else 'replicas are'} needed."
        )
    return f"{sentence}."


def _busy_of(models: Iterable[Minutes], start: float, end: float) -> float | None:
    """Returns the share of the time in which the GPUs of all models worked; `None` if it is not known."""
    found = [
        (ratio, one.replicas.get(at, 1.0))
        for one in models
        for at, ratio in one.busy.items()
        if at > start and at - 60 < end
    ]
    total = sum(replicas for _, replicas in found)
    return round(sum(ratio * replicas for ratio, replicas in found) / total, 3) if total else None


def _mean(values: Iterable[float]) -> float:
    found: Sequence[float] = tuple(values)
    return sum(found) / len(found) if found else 0.0


def _open(model: VertexEndpointModel) -> Read:
    from google.auth.transport.requests import AuthorizedSession

    session = AuthorizedSession(  # type: ignore[no-untyped-call]
        default_credentials("Cloud Monitoring"), auth_request=token_request()
    )
    url = time_series_url(model.endpoint.split("/")[1])

    def read(params: Mapping[str, Any]) -> Iterable[Series]:
        query = dict(params)
        while True:
            reply = session.get(url, params=query, timeout=_TIMEOUT_SECONDS, allow_redirects=False)
            if reply.status_code == 404:  # a metric without data in this project
                return
            if reply.status_code != 200:
                raise ValueError(f"HTTP {reply.status_code}: {reply.text[:300]}")
            page = reply.json()
            yield from read_series(page)
            if not (token := page.get("nextPageToken")) or token == query.get("pageToken"):
                return
            query["pageToken"] = token

    return read
