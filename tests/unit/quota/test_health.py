"""Verdicts from all evidence together. The situations as Google shows them are in `test_situations`."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.hooks.probe import Probe, ProbeReply
from airflow_provider_llmbeam.quota.evidence import Allowance, Evidence, Serving, Traffic
from airflow_provider_llmbeam.quota.findings import MARGIN, MIN_SAMPLE, STALE_SECONDS
from airflow_provider_llmbeam.quota.health import QuotaHealth, judge
from airflow_provider_llmbeam.quota.metrics import QuotaMetrics
from airflow_provider_llmbeam.transport.monitoring import Series

NOW = 1_700_000_000.0


def probe(answered=0, rejected=0, failed=0, seconds=0.4, **last):
    outcomes = ["answered"] * answered + ["rejected"] * rejected + ["failed"] * failed
    replies = [
        ProbeReply(outcome=outcome, seconds=seconds, message="" if outcome == "answered" else "HTTP 429: full")
        for outcome in outcomes
    ]
    return Probe(replies=tuple(replies), cost_usd=0.0, at=NOW)


def traffic(invocations=1000, rejected=0, age=240.0, **others):
    return Traffic(invocations=invocations, rejected=rejected, until=NOW - age, **others)


def shared(**known):
    return judge(Evidence(situation="shared_pool", what="gemini-2.5-flash in 'global'", **known), NOW)


def test_no_evidence_is_unknown_and_never_healthy():
    found = shared()
    assert (found.verdict, found.rates, found.age_seconds) == ("unknown", {}, None)
    assert "no evidence" in found.sentence


def test_answered_probe_requests_outweigh_rejections_of_a_shared_pool_minutes_ago():
    assert shared(traffic=traffic(rejected=900)).verdict == "exhausted"
    found = shared(traffic=traffic(rejected=900, peak_requests_per_minute=50.0), probe=probe(answered=8))
    assert (found.verdict, found.rates) == ("degraded", {"requests": 50.0})


def test_a_pool_that_admitted_nothing_has_no_known_present_rate():
    found = shared(traffic=traffic(rejected=1000), probe=probe(answered=8))
    assert (found.verdict, found.rates) == ("degraded", {})


def test_answered_probe_requests_do_not_outweigh_a_used_up_limit():
    full = Allowance(name="requests", unit="requests", limit=600, used=600, until=NOW - 200)
    evidence = Evidence(
        situation="published_quota", what="m", allowances=(full,), probe=probe(answered=8), traffic=traffic()
    )
    found = judge(evidence, NOW)
    assert (found.verdict, found.rates) == ("exhausted", {"requests": 0.0})
    assert found.headroom == {"requests": 0.0}


def test_a_rejected_probe_request_outweighs_healthy_metrics():
    assert shared(traffic=traffic(), probe=probe(rejected=3)).verdict == "exhausted"


def test_the_free_rate_excludes_the_usage_of_other_jobs():
    of = Allowance(name="limits", unit="requests", limit=600, used=240, until=NOW - 200)
    found = shared(traffic=traffic(peak_requests_per_minute=240.0), allowances=(of,), probe=probe(answered=8))
    assert found.rates["requests"] == pytest.approx(MARGIN * 360)
    assert (found.limits, found.usage, found.headroom) == ({"requests": 600}, {"requests": 240}, {"requests": 360})


def test_the_tightest_of_several_limits_counts():
    wide = Allowance(name="a", unit="requests", limit=600, used=0, until=NOW - 200)
    narrow = Allowance(name="b", unit="requests", limit=1000, used=900, until=NOW - 200)
    found = judge(Evidence(situation="published_quota", what="m", allowances=(wide, narrow)), NOW)
    assert found.rates["requests"] == pytest.approx(95)
    assert found.limits == {"requests": 1000}


def test_evidence_grows_stale():
    limit = Allowance(name="a", unit="requests", limit=600, used=0, until=NOW - STALE_SECONDS - 1)
    assert judge(Evidence(situation="published_quota", what="m", allowances=(limit,)), NOW).verdict == "unknown"
    assert shared(traffic=traffic(age=STALE_SECONDS + 1)).verdict == "unknown"
    assert shared(traffic=traffic(age=STALE_SECONDS - 1)).verdict == "healthy"


def test_the_sentence_has_the_age_and_the_sample_size():
    assert "Of 1,000 requests until 4 min ago 5.0% were rejected." in shared(traffic=traffic(rejected=50)).sentence


def test_health_round_trips_through_json():
    found = shared(traffic=traffic(rejected=50), probe=probe(answered=7, rejected=1))
    assert QuotaHealth.from_dict(found.to_dict()) == found


amounts = st.integers(0, 5000)


@given(st.data())
def test_more_rejections_never_make_a_pool_healthier(data):
    invocations = data.draw(st.integers(MIN_SAMPLE, 5000))
    fewer, more = sorted(data.draw(st.tuples(*[st.integers(0, invocations)] * 2)))
    ranks = ("healthy", "degraded", "exhausted")
    for tried in (None, probe(answered=8), probe(answered=4, rejected=4)):
        seen = [shared(traffic=traffic(invocations, count), probe=tried).verdict for count in (fewer, more)]
        assert seen == sorted(seen, key=ranks.index)


@given(limit=st.floats(0, 1e6), used=st.floats(0, 1e6), exceeded=amounts)
def test_no_recommended_rate_exceeds_the_headroom(limit, used, exceeded):
    of = Allowance(name="a", unit="requests", limit=limit, used=used, exceeded=exceeded, until=NOW)
    found = judge(Evidence(situation="published_quota", what="m", allowances=(of,)), NOW)
    assert 0 <= found.rates["requests"] <= max(0.0, limit - used)
    assert (found.rates["requests"] == 0) == (found.verdict == "exhausted") or limit - used < 1


@pytest.mark.parametrize(
    ("answered", "rejected", "failed"), [each for each in itertools.product((0, 4), repeat=3) if any(each)]
)
def test_a_probe_is_healthy_only_if_all_requests_were_answered(answered, rejected, failed):
    verdict = shared(probe=probe(answered, rejected, failed)).verdict
    assert (verdict == "healthy") == (not rejected and not failed)
    assert (verdict == "unknown") == (not answered and not rejected)
    assert (verdict == "exhausted") == (not answered and rejected > 0)


# An endpoint of the project


class Reader:
    """A reader of metrics that shows the responses of an endpoint by class, as Cloud Monitoring does."""

    def __init__(self, **responses):
        self._responses = responses

    def series(self, metric, where, *, end, **aligned):
        if not metric.endswith("/prediction/online/response_count"):
            return []
        points = {code: [(end, float(count))] for code, count in self._responses.items()}
        return [Series({"response_code": code.strip("_")}, points[code]) for code in points]


def own(probe=None, **responses):
    serving = QuotaMetrics(Reader(**responses), "us-central1", NOW).serving("77")
    return judge(Evidence(situation="own_endpoint", what="endpoint '77'", serving=serving, probe=probe), NOW)


def test_of_an_endpoint_only_classes_of_codes_are_known_and_4xx_may_be_429():
    found = own(_2xx=10, _4xx=90)
    assert (found.verdict, found.rejected_ratio) == ("degraded", None)
    assert "0.0% failed (5xx) and 90.0% were refused (4xx): by a 429 or for their form" in found.sentence


def test_an_endpoint_whose_server_has_a_queue_is_degraded():
    found = judge(Evidence(situation="own_endpoint", what="e", serving=Serving(waiting=7, until=NOW)), NOW)
    assert (found.verdict, "7 requests wait in its queue" in found.sentence) == ("degraded", True)
    idle = Serving(waiting=0, until=NOW)
    assert judge(Evidence(situation="own_endpoint", what="e", serving=idle), NOW).verdict == "healthy"


def test_without_4xx_there_were_no_429():
    assert own(_2xx=100).rejected_ratio == 0.0


def test_an_endpoint_that_failed_minutes_ago_and_answers_the_probe_is_degraded():
    assert own(_2xx=10, _4xx=1, _5xx=90).verdict == "exhausted"
    assert own(probe(answered=8), _2xx=10, _4xx=1, _5xx=90).verdict == "degraded"
    up = Serving(replicas=0, target_replicas=1, until=NOW)
    assert judge(Evidence(situation="own_endpoint", what="e", serving=up), NOW).verdict == "exhausted"
