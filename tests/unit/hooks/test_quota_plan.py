from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.hooks.quota_health import QuotaHealth
from airflow_provider_llmbeam.hooks.quota_plan import Fit, best, fit, may_start, recommended_limits
from airflow_provider_llmbeam.spec.demand import Demand
from airflow_provider_llmbeam.spec.limits import Limits


def health(verdict="healthy", rpm=None, tpm=None, location="global"):
    return QuotaHealth(
        verdict=verdict,
        sentence=f"{location} is {verdict}.",
        location=location,
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
        limits={},
        usage={},
        headroom={},
    )


DEMAND = Demand(rows=6000, input_tokens_per_row=900, output_tokens_per_row=100)


def test_the_tighter_of_requests_and_tokens_bounds_the_time():
    assert fit(health(rpm=600), DEMAND, 3600) == Fit(600.0, 1.0)
    assert fit(health(rpm=600, tpm=50_000), DEMAND, 3600) == Fit(7200.0, 0.5)


def test_without_a_rate_or_a_demand_nothing_is_foretold():
    assert fit(health(), DEMAND, 3600) == Fit()
    assert fit(health(rpm=600), None, 3600) == Fit()


def test_a_rate_of_nothing_never_ends():
    found = fit(health("exhausted", rpm=0.0), DEMAND, None)
    assert (found.seconds, found.ratio) == (math.inf, 0.0)
    assert fit(health(rpm=0.0), Demand(rows=0, input_tokens_per_row=0), 60) == Fit(0.0, 1.0)


@pytest.mark.parametrize(
    ("verdict", "ratio", "least", "starts"),
    [
        ("healthy", None, 1.0, True),
        ("healthy", 1.0, 1.0, True),
        ("healthy", 0.6, 1.0, False),
        ("healthy", 0.6, 0.5, True),
        ("degraded", 1.0, 1.0, True),
        ("exhausted", None, 0.1, False),
        ("unknown", None, 0.1, False),
    ],
)
def test_a_job_starts_where_there_is_room_for_enough_of_it(verdict, ratio, least, starts):
    assert may_start(health(verdict), Fit(None, ratio), least) is starts


def test_the_best_location_is_the_healthiest_then_the_fastest_then_the_first():
    slow, quick = health(rpm=60, location="a"), health(rpm=600, location="b")
    bad, unknown = health("degraded", rpm=6000, location="c"), health("unknown", location="d")
    assert best([unknown, bad, slow, quick], DEMAND, 3600) is quick
    assert best([slow, health(rpm=60, location="z")], DEMAND, 3600) is slow
    assert best([unknown, health("exhausted", rpm=0.0)], DEMAND, 3600) is unknown


def test_the_recommended_limits_keep_what_the_job_had():
    given_limits = {"requests_per_minute": 600, "budget_usd": 5, "share_ratio": 0.3}
    found = recommended_limits(given_limits, health(rpm=342.17))
    assert found == {"requests_per_minute": 180.0, "budget_usd": 5}
    assert recommended_limits({"seed": 5}, health(rpm=342.17)) == {"seed": 5, "requests_per_minute": 342.1}
    assert recommended_limits({}, health()) == {}


@given(
    st.none() | st.floats(0.1, 1e6),
    st.none() | st.floats(0.1, 1e6),
    st.fixed_dictionaries(
        {}, optional={"requests_per_minute": st.floats(1, 1e5), "tokens_per_minute": st.floats(1, 1e7)}
    ),
)
def test_the_recommended_limits_are_limits(rpm, tpm, limits):
    found = recommended_limits(limits, health(rpm=rpm, tpm=tpm))
    assert Limits.problems(found) == ()
    for name, rate in (("requests_per_minute", rpm), ("tokens_per_minute", tpm)):
        bounds = [bound for bound in (rate, limits.get(name)) if bound is not None]
        assert found.get(name, math.inf) <= max(1.0, min(bounds, default=math.inf))
