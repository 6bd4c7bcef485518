from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.quota.health import QuotaHealth
from airflow_provider_llmbeam.quota.recommendation import Fit, best, fit, may_start, recommended_limits
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion


def health(verdict="healthy", location="global", **rates):
    return QuotaHealth(
        verdict=verdict,
        sentence=f"{location} is {verdict}.",
        location=location,
        rates=rates,
        limits={},
        usage={},
        headroom={},
    )


DEMAND = {"rows": 6000, "input_tokens_per_row": 900, "output_tokens_per_row": 100}


def question(**given):
    return QuotaQuestion.parse({"model": {"type": "echo"}, "demand": DEMAND, "window_seconds": 3600, **given})


def test_the_tightest_rate_bounds_the_time():
    asked = question()
    assert fit(asked, health(requests=600)) == Fit(600.0, 1.0)
    assert fit(asked, health(requests=600, tokens=50_000)) == Fit(7200.0, 0.5)
    assert fit(asked, health(input_tokens=1_000_000, output_tokens=100_000)) == Fit(360.0, 1.0)


def test_without_a_rate_or_a_demand_there_is_no_projection():
    assert fit(question(), health()) == Fit()
    assert fit(question(demand=None), health(requests=600)) == Fit()


LEARNED = {"requests_per_minute": 50, "learned_at": 0}


def test_where_no_rate_is_known_the_duration_is_that_at_the_rate_of_an_earlier_job_which_holds_back_none():
    asked = question(demand={**DEMAND, "learned_rate": LEARNED})
    found = fit(asked, health())
    assert (found.seconds, found.ratio, found.learned_rate) == (7200.0, 0.5, asked.demand.learned_rate)
    assert found.learned_rate.words == "50 requests per minute on 1970-01-01 00:00 UTC"
    assert may_start(asked, health())
    assert not may_start(asked, health("exhausted"))
    assert not may_start(asked, health("unknown"))
    assert recommended_limits(asked, health()) == {}, "the job learns its rate anew"
    assert fit(question(demand=asked.demand, window_seconds=None), health()).seconds == 7200.0


def test_the_rate_of_an_earlier_job_is_not_used_where_another_one_is_known_or_for_an_endpoint_that_is_not_there():
    demand = {**DEMAND, "learned_rate": LEARNED}
    assert fit(question(demand=demand), health(requests=600)) == Fit(600.0, 1.0)
    assert fit(question(demand=demand, limits={"requests_per_minute": 600}), health()) == Fit(600.0, 1.0)
    endpoint = {"type": "vertex", "model": "google/gemma3@gemma-3-4b-it", "machine_type": "g2-standard-24"}
    endpoint |= {"locations": ["us-central1"], "accept_eula": True}
    assert fit(question(demand=demand, model=None, endpoint=endpoint), health()) == Fit()


def test_the_limits_of_the_job_and_its_share_of_them_count():
    asked = question(limits={"requests_per_minute": 1000, "share_ratio": 0.1})
    assert fit(asked, health(requests=950)) == Fit(3600.0, 1.0)
    assert fit(asked, health()) == Fit(3600.0, 1.0)
    assert recommended_limits(asked, health(requests=950)) == {"requests_per_minute": 100.0}


def test_a_job_at_a_rate_of_zero_never_ends():
    found = fit(question(window_seconds=None), health("exhausted", requests=0.0))
    assert (found.seconds, found.ratio) == (math.inf, 0.0)
    assert fit(question(demand=DEMAND | {"rows": 0}), health(requests=0.0)) == Fit(0.0, 1.0)


@pytest.mark.parametrize(
    ("verdict", "rate", "least", "starts"),
    [
        ("healthy", None, 1.0, True),
        ("healthy", 600, 1.0, True),
        ("healthy", 60, 1.0, False),
        ("healthy", 60, 0.5, True),
        ("degraded", 600, 1.0, True),
        ("exhausted", None, 0.1, False),
        ("unknown", 600, 0.1, False),
    ],
)
def test_a_job_may_start_if_enough_of_it_fits_into_its_window(verdict, rate, least, starts):
    rates = {} if rate is None else {"requests": rate}
    assert may_start(question(min_fit_ratio=least), health(verdict, **rates)) is starts


@pytest.mark.parametrize("verdict", ["healthy", "degraded", "exhausted", "unknown"])
def test_a_job_without_rows_may_start_in_any_case(verdict):
    assert may_start(question(demand=DEMAND | {"rows": 0}), health(verdict, requests=0.0))


def test_locations_are_ranked_by_permission_to_start_health_speed_and_order():
    slow, quick = health(requests=150, location="a"), health(requests=600, location="b")
    bad, unknown = health("degraded", requests=6000, location="c"), health("unknown", location="d")
    assert best(question(), [unknown, bad, slow, quick]) is quick
    assert best(question(), [slow, health(requests=150, location="z")]) is slow
    assert best(question(), [unknown, health("exhausted", requests=0.0)]) is unknown
    too_slow = health(requests=10, location="e")
    assert best(question(), [too_slow, bad]) is bad
    assert best(question(demand=None), [health("degraded", requests=0.0), bad]) is bad


def test_the_recommended_limits_keep_the_other_limits_of_the_job():
    asked = question(limits={"requests_per_minute": 600, "max_attempts": 7, "share_ratio": 0.3})
    assert recommended_limits(asked, health(requests=342.17)) == {"requests_per_minute": 180.0, "max_attempts": 7}
    asked = question(limits={"max_attempts": 7})
    assert recommended_limits(asked, health(requests=342.17)) == {"max_attempts": 7, "requests_per_minute": 342.1}
    assert recommended_limits(question(), health()) == {}


def test_quotas_of_input_and_of_output_become_one_of_both_by_the_demand():
    found = recommended_limits(question(), health(input_tokens=900_000, output_tokens=50_000))
    assert found == {"tokens_per_minute": 500_000.0}
    assert recommended_limits(question(demand=None), health(input_tokens=900)) == {"tokens_per_minute": 900.0}


@given(
    st.none() | st.floats(0.1, 1e6),
    st.none() | st.floats(0.1, 1e6),
    st.fixed_dictionaries(
        {}, optional={"requests_per_minute": st.floats(1, 1e5), "tokens_per_minute": st.floats(1, 1e7)}
    ),
)
def test_the_recommended_limits_are_limits(rpm, tpm, limits):
    rates = {unit: rate for unit, rate in (("requests", rpm), ("tokens", tpm)) if rate is not None}
    found = recommended_limits(question(limits=limits), health(**rates))
    assert Limits.problems(found) == ()
    for name, rate in (("requests_per_minute", rpm), ("tokens_per_minute", tpm)):
        bounds = [bound for bound in (rate, limits.get(name)) if bound is not None]
        assert found.get(name, math.inf) <= min(bounds, default=math.inf)


POOLED = {"type": "gemini", "name": "gemini-2.5-flash", "project": "p"}


def test_a_pool_without_a_rate_has_the_duration_at_each_usage_tier_and_the_stated_one_counts():
    demand = {"rows": 800_000, "input_tokens_per_row": 900, "output_tokens_per_row": 60}
    each = {1: 23_040.0, 2: 11_520.0, 3: 4_608.0}
    assert fit(question(model=POOLED, demand=demand), health()) == Fit(tier_seconds=each)
    demand |= {"learned_rate": LEARNED}
    assert fit(question(model=POOLED, demand=demand), health()).tier_seconds == {}
    asked = question(model=POOLED, demand=demand, limits={"usage_tier": 2})
    assert fit(asked, health()) == Fit(11_520.0, 3600 / 11_520, None, {2: 11_520.0})
    assert may_start(asked, health()), "waiting raises no threshold"
    assert not may_start(asked, health("unknown"))
    assert recommended_limits(asked, health()) == {"usage_tier": 2}, "the job probes the pool above"


def test_what_the_pool_has_admitted_lately_bounds_no_job_with_a_threshold():
    assert recommended_limits(question(model=POOLED), health("degraded", requests=30)) == {
        "requests_per_minute": 30
    }
    asked = question(model=POOLED, limits={"usage_tier": 2})
    assert recommended_limits(asked, health("degraded", requests=30)) == {"usage_tier": 2}
