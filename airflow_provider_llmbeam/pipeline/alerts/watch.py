"""Watches the counts of a running job for alerts."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_llmbeam.pipeline.alerts.decide import RunFacts, alerts_of_counts
from airflow_provider_llmbeam.pipeline.alerts.raised import RaisedAlerts
from airflow_provider_llmbeam.spec.alerts import Alerts
from airflow_provider_llmbeam.spec.protocol.counts import Counts


def watched_by(rules: Alerts, run: RunFacts, raised: RaisedAlerts) -> Callable[[Counts], None]:
    """Returns a function that raises the alerts of the counts that it is called with."""
    first: tuple[Counts, float] | None = None

    def watch(counts: Counts) -> None:
        nonlocal first
        now = time.time()
        if first is None and counts.answered:
            first = counts, now
        then, first_at = first or (counts, now)
        raised.raise_new(alerts_of_counts(rules, run, counts, then, now - first_at, now))

    return watch
