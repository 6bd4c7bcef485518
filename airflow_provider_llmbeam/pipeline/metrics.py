"""Beam counters of a job. Incremented from the bundle thread: elsewhere Beam drops them silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from apache_beam.metrics import Metrics

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome

NAMESPACE = "llmbeam"


def count_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Adds a batch to the job's counters."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts["requests"] += outcome.attempts + outcome.rejections
        counts["rejections"] += outcome.rejections
        counts["input_tokens"] += outcome.input_tokens
        counts["output_tokens"] += outcome.output_tokens
        counts["answered" if isinstance(outcome, Completion) else "failed"] += 1
    for name, count in counts.items():
        Metrics.counter(NAMESPACE, name).inc(count)
