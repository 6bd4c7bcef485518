"""The figures of a comparison."""

from __future__ import annotations

from airflow_provider_llmbeam.pipeline.measure.compare import quantile


def test_quantiles_are_values_that_occur():
    assert quantile([], 0.5) is None
    assert quantile([1.0], 0.95) == 1
    assert (quantile([1.0, 2.0, 3.0, 4.0], 0.5), quantile([1.0, 2.0, 3.0, 4.0], 0.95)) == (2, 4)
