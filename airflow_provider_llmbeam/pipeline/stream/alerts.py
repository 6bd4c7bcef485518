"""The alerts of a stream: which are raised, and which are over, by the windows of all members. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_llmbeam.pipeline.stream.windows import Window, begins, slide
from airflow_provider_llmbeam.spec.alerts import Alerts
from airflow_provider_llmbeam.spec.protocol.alert import Alert, AlertKind
from airflow_provider_llmbeam.spec.protocol.counts import NANO, usd

_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A figure beside its limit.

    Attributes:
        kind: What it is about.
        value: The figure.
        limit: Its limit.
        words: Both, in words.
        has_exceeded: Whether the figure has been above its limit for long enough.
        is_within: Whether it has not been above it for long enough.
    """

    kind: AlertKind
    value: float
    limit: float
    words: str
    has_exceeded: bool
    is_within: bool


def alerts_of_stream(
    rules: Alerts,
    windows: Mapping[int, Window],
    raised: Collection[str],
    *,
    job: str,
    window_seconds: int,
    last: int,
) -> Iterator[Alert]:
    """Yields the alerts that are to be raised now, and those that are over.

    Args:
        rules: What raises an alert.
        windows: The windows of all members, by their begin.
        raised: Kinds of the alerts that are raised.
        job: Name of the job.
        window_seconds: Length of a window, in seconds.
        last: Begin of the last window that all members have written.
    """
    if last not in windows:  # no member was there, and nothing is known
        return
    for each in _readings(rules, windows, last, window_seconds):
        is_raised = each.kind in raised
        if each.is_within if is_raised else each.has_exceeded:
            yield Alert(
                kind=each.kind,
                message=f"{'Resolved: ' if is_raised else ''}{each.words}.",
                value=each.value,
                threshold=each.limit,
                job=job,
                is_resolved=is_raised,
            )


def _readings(rules: Alerts, windows: Mapping[int, Window], last: int, window_seconds: int) -> Iterator[Reading]:
    recent = slide(windows, last, rules.for_seconds, window_seconds)
    each_window = [windows.get(begin, Window()) for begin in begins(last, rules.for_seconds, window_seconds)]
    time = f"{len(each_window) * window_seconds:,} s"
    if (limit := rules.latency_p95_ms) is not None:
        latencies = [(window.latency_seconds(0.95) or 0.0) * 1000 for window in each_window]
        value = (recent.latency_seconds(0.95) or 0.0) * 1000
        yield Reading(
            kind="latency",
            value=round(value, 1),
            limit=limit,
            words=f"95 % of the messages of the last {time} were answered within {value:,.0f} ms "
            f"(`alerts.latency_p95_ms` is {limit:g})",
            has_exceeded=min(latencies) > limit,
            is_within=max(latencies) <= limit,
        )
    if rules.lag is not None:
        lags, value = [window.lag or 0 for window in each_window], windows[last].lag or 0
        yield Reading(
            kind="lag",
            value=value,
            limit=rules.lag,
            words=f"{value:,} messages wait, and in the last {time} at least {min(lags):,} and at most "
            f"{max(lags):,} did (`alerts.lag` is {rules.lag:,})",
            has_exceeded=min(lags) > rules.lag,
            is_within=max(lags) <= rules.lag,
        )
    if (limit := rules.failed_row_ratio) is not None:
        ratio = recent.failed / recent.messages if recent.messages else 0.0
        yield Reading(
            kind="failed_rows",
            value=round(ratio, 6),
            limit=limit,
            words=f"{recent.failed:,} of the {recent.messages:,} messages of the last {time} are dead letters "
            f"({ratio:.1%}; `alerts.failed_row_ratio` is {limit:g})",
            has_exceeded=ratio > limit,
            is_within=ratio <= limit,
        )
    if (limit := rules.cost_usd_per_hour) is not None:
        cost = slide(windows, last, _HOUR, window_seconds).spent_nano_usd / NANO
        yield Reading(
            kind="cost",
            value=round(cost, 6),
            limit=limit,
            words=f"The last hour has cost {usd(cost)} (`alerts.cost_usd_per_hour` is {limit:g})",
            has_exceeded=cost > limit,
            is_within=cost <= limit,
        )
