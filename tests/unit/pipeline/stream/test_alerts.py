"""The alerts of a stream: each kind is raised once, and resolved once."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_llmbeam.pipeline.reporting.time_series import latency_class
from airflow_provider_llmbeam.pipeline.stream.alerts import alerts_of_stream
from airflow_provider_llmbeam.pipeline.stream.windows import Window
from airflow_provider_llmbeam.spec import Alerts

WINDOW = 60
FINE = {"answers": 10, "latencies": Counter({latency_class(0.1): 10}), "lag": 5, "spent_nano_usd": 10**6}
SLOW = {"latencies": Counter({latency_class(0.1): 5, latency_class(2.0): 5})}
#: Of each kind: what raises it, windows that do, and its message.
CASES = {
    "latency": (
        {"latency_p95_ms": 250},
        SLOW,
        "95 % of the messages of the last 300 s were answered within 2,144 ms (`alerts.latency_p95_ms` is 250).",
    ),
    "lag": (
        {"lag": 1000},
        {"lag": 1001},
        "1,001 messages wait, and in the last 300 s at least 1,001 and at most 1,001 did (`alerts.lag` is 1,000).",
    ),
    "failed_rows": (
        {"failed_row_ratio": 0.05},
        {"dead_letter": Counter(blocked=3)},
        "3 of the 53 messages of the last 300 s are dead letters (5.7%; `alerts.failed_row_ratio` is 0.05).",
    ),
    "cost": (
        {"cost_usd_per_hour": 5},
        {"spent_nano_usd": 6 * 10**9},
        "The last hour has cost $6.01 (`alerts.cost_usd_per_hour` is 5).",
    ),
}


def told(rules, windows):
    """Returns the alerts of windows that come one after the other, each with the number of its window."""
    raised, found = set(), []
    for count in range(1, len(windows) + 1):
        known = {number * WINDOW: window for number, window in enumerate(windows[:count]) if window is not None}
        last = (count - 1) * WINDOW
        for alert in alerts_of_stream(Alerts(**rules), known, raised, job="job", window_seconds=WINDOW, last=last):
            raised ^= {alert.key}
            found.append((count - 1, alert))
    return found


def series(bad, count):
    """Returns ten good windows, bad ones, and an hour of good ones."""
    return [Window(**FINE)] * 10 + [Window(**{**FINE, **bad})] * count + [Window(**FINE)] * 70


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_is_raised_once_and_resolved_once(kind):
    rules, bad, message = CASES[kind]
    (at, alert), (after, resolved) = told(rules, series(bad, 1 if kind in ("cost", "failed_rows") else 6))
    assert (alert.kind, alert.message, alert.is_resolved) == (kind, message, False)
    assert alert.value > alert.threshold
    assert (resolved.kind, resolved.is_resolved) == (kind, True)
    assert resolved.message.startswith("Resolved: ")
    assert resolved.value <= resolved.threshold
    expected = {"latency": (14, 20), "lag": (14, 20), "failed_rows": (10, 15), "cost": (10, 70)}
    assert (at, after) == expected[kind]


@pytest.mark.parametrize("kind", CASES)
def test_without_a_rule_nothing_is_raised(kind):
    assert told({}, series(CASES[kind][1], 10)) == []


@pytest.mark.parametrize("kind", ["latency", "lag"])
def test_four_of_five_windows_above_the_limit_raise_nothing_and_end_nothing(kind):
    rules, bad, _ = CASES[kind]
    assert told(rules, series(bad, 4)) == []
    flapping = series(bad, 6)[:18] + series(bad, 1)[10:]
    assert len(told(rules, flapping)) == 2


def test_while_no_member_is_there_an_alert_stays():
    rules, bad, _ = CASES["lag"]
    gone = series(bad, 6)[:16] + [None] * 10 + [Window(**{**FINE, **bad})] * 3
    assert [alert.is_resolved for _, alert in told(rules, gone)] == [False]
