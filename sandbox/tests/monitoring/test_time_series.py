from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmbeam_sandbox.cloud_quotas.published import (
    GPU_QUOTAS,
    base_model,
    has_published_quota,
    rate_quotas,
)
from llmbeam_sandbox.monitoring.filter import read_field, read_filter
from llmbeam_sandbox.monitoring.time_series import (
    GROWTH,
    Aggregation,
    Distribution,
    Point,
    Series,
    Table,
    added,
    aggregated,
    distribution,
    percentile,
)


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=50), st.sampled_from([50, 95, 99]))
def test_a_percentile_is_off_by_at_most_the_width_of_a_bucket(values: list[float], percent: int) -> None:
    spread = added(map(distribution, values))
    assert isinstance(spread, Distribution)
    exact = sorted(values)[min(len(values) - 1, int(-(-percent * len(values) // 100)) - 1)]
    assert exact / GROWTH / 1.001 <= percentile(spread, percent) <= exact * GROWTH * 1.001


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_a_distribution_keeps_count_mean_and_deviation(values: list[float]) -> None:
    spread = added(map(distribution, values))
    assert isinstance(spread, Distribution)
    fields = spread.fields()
    mean = sum(values) / len(values)
    assert (int(fields["count"]), fields["mean"]) == (len(values), pytest.approx(mean))
    assert sum(map(int, fields["bucketCounts"])) == len(values)
    deviation = sum((value - mean) ** 2 for value in values)
    assert fields["sumOfSquaredDeviation"] == pytest.approx(
        deviation, rel=1e-3, abs=1e-6 * max(values) ** 2 + 1e-9
    )


def test_nothing_has_a_percentile_and_a_mean_of_zero() -> None:
    assert (percentile(Distribution(), 95), Distribution().mean) == (0.0, 0.0)


@given(st.lists(st.integers(1, 600), min_size=1, max_size=30, unique=True), st.integers(1, 10), st.integers(0, 59))
def test_no_aligned_sum_loses_a_value(minutes: list[int], periods: int, offset: int) -> None:
    points = [Point(start=(one - 1) * 60.0, end=one * 60.0, value=one) for one in sorted(minutes)]
    table = Table(kind="DELTA", value_type="INT64", series=[Series(labels={}, resource={}, points=points)])
    aggregation = Aggregation(period_seconds=periods * 60.0, aligner="ALIGN_DELTA")
    found = aggregated(table, aggregation, 36_000.0 + offset).series[0].points
    assert sum(point.value for point in found) == sum(minutes)  # type: ignore[misc]
    ends = [point.end for point in found]
    assert ends == sorted(set(ends))
    assert all(point.end - point.start == periods * 60 for point in found)


def test_distributions_are_averaged_over_all_their_values() -> None:
    series = [
        Series(labels={}, resource={}, points=[Point(start=0, end=60, value=distribution(value, count))])
        for value, count in ((100.0, 1), (400.0, 2))
    ]
    aggregation = Aggregation(aligner="ALIGN_DELTA", reducer="REDUCE_MEAN")
    table = aggregated(Table(kind="DELTA", value_type="DISTRIBUTION", series=series), aggregation, 60.0)
    assert (table.value_type, table.series[0].points[0].value) == ("DOUBLE", pytest.approx(300))


def test_a_filter_is_read_with_either_spelling_of_labels() -> None:
    found = read_filter(
        'metric.type="a/b" AND resource.type = "r" and metric.label."code"="a\\"b" resource.labels.location = "x"'
    )
    assert (found.metric_type, found.resource_type) == ("a/b", "r")
    assert (found.labels, found.resource) == ({"code": 'a"b'}, {"location": "x"})
    assert found.matches({"code": 'a"b', "more": ""}, {"location": "x"})
    assert not found.matches({"code": "c"}, {"location": "x"})
    assert not found.matches({"code": 'a"b'}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metric.labels.code", ("metric", "code")),
        ('metric.label."code"', ("metric", "code")),
        ("resource.type", ("resource", "type")),
    ],
)
def test_a_field_to_group_by_is_read(text: str, expected: tuple[str, str]) -> None:
    assert read_field(text) == expected


@pytest.mark.parametrize(
    ("model", "is_published", "base"),
    [
        ("gemini-2.5-flash", False, "gemini-2.5-flash"),
        ("gemini-3-pro-preview", False, "gemini-3-pro-preview"),
        ("gemini-2.0-flash-001", False, "gemini-2.0-flash"),
        ("gemini-1.5-pro-002", True, "gemini-1.5-pro"),
        ("gemini-embedding-001", True, "gemini-embedding"),
        ("text-embedding-005", True, "textembedding-gecko"),
        ("textembedding-gecko@003", True, "textembedding-gecko"),
        ("gemma-3-27b-it", True, "gemma-3-27b-it"),
    ],
)
def test_chat_models_from_gemini_2_on_have_no_published_quota(model: str, is_published: bool, base: str) -> None:
    assert (has_published_quota(model), base_model(model)) == (is_published, base)
    assert ("embed" in rate_quotas(model)[1].metric) == ("embedding" in model)


def test_every_quota_of_accelerators_has_its_own_id() -> None:
    names = [(quota.service, quota.id) for quota in GPU_QUOTAS]
    assert len(set(names)) == len(names)
    assert ("aiplatform.googleapis.com", "CustomModelServingA10080GBGPUsPerProjectPerRegion") in names
