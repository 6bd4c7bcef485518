from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_llmbeam.pipeline.reporting.tally import latency_class, latency_counts


def test_no_two_classes_of_latencies_have_the_same_bound():
    classes = Counter(dict.fromkeys(range(latency_class(1e-06), latency_class(100000) + 1), 1))
    assert len(latency_counts(classes)) == len(classes)


@pytest.mark.parametrize("seconds", [0.00096, 0.00104, 0.5, 93.0, 3600.0])
def test_a_bound_is_at_most_ten_percent_above_the_latency(seconds):
    (bound,) = latency_counts(Counter({latency_class(seconds): 3}))
    assert seconds * 0.999 <= float(bound) <= seconds * 1.1001
