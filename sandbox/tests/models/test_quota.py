from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmbeam_sandbox.models.quota import (
    DAY_SECONDS,
    FixedWindow,
    LocationQuotas,
    Quota,
    QuotaLedger,
)


def test_without_limits_everything_is_admitted() -> None:
    ledger = QuotaLedger(Quota())
    assert all(ledger.admit(0.0, 1_000_000) is None for _ in range(1000))


def test_a_full_bucket_admits_two_seconds_worth_of_requests() -> None:
    ledger = QuotaLedger(Quota(requests_per_minute=300))
    admitted = [ledger.admit(0.0, 1) is None for _ in range(20)]
    assert admitted.count(True) == 10


def test_a_small_bucket_still_holds_one_request() -> None:
    ledger = QuotaLedger(Quota(requests_per_minute=1))
    assert ledger.admit(0.0, 1) is None
    rejection = ledger.admit(0.0, 1)
    assert rejection is not None
    assert rejection.limit_name == "requests-per-minute"
    assert rejection.retry_delay_seconds == pytest.approx(60)


@given(st.integers(1, 10_000), st.floats(0.1, 60), st.integers(1, 50))
def test_a_request_after_the_retry_delay_is_admitted(limit: int, burst_seconds: float, extra: int) -> None:
    ledger = QuotaLedger(Quota(requests_per_minute=limit, burst_seconds=burst_seconds))
    now = 1_700_000_000.0
    for _ in range(extra):
        while (rejection := ledger.admit(now, 1)) is None:
            pass
        assert rejection.retry_delay_seconds is not None
        now += rejection.retry_delay_seconds + 1e-6
        assert ledger.admit(now, 1) is None


def test_output_tokens_are_charged_on_completion_and_may_leave_a_debt() -> None:
    ledger = QuotaLedger(Quota(tokens_per_minute=600))
    assert ledger.admit(0.0, 20) is None
    ledger.charge_output(0.0, 100)
    rejection = ledger.admit(0.0, 10)
    assert rejection is not None
    assert rejection.limit_name == "tokens-per-minute"
    assert rejection.retry_delay_seconds == pytest.approx(11.0)


def test_a_prompt_over_the_capacity_is_admitted_by_a_full_bucket() -> None:
    ledger = QuotaLedger(Quota(tokens_per_minute=60))
    assert ledger.admit(0.0, 50) is None
    assert ledger.admit(30.0, 1) is not None
    assert ledger.admit(51.0, 1) is None


def test_a_fixed_window_admits_its_number_and_opens_again() -> None:
    ledger = QuotaLedger(Quota(window=FixedWindow(requests=100, seconds=20)))
    assert [ledger.admit(5.0, 1) for _ in range(100)] == [None] * 100
    rejection = ledger.admit(10.0, 1)
    assert rejection is not None
    assert (rejection.limit_name, rejection.limit) == ("window", 100)
    assert rejection.retry_delay_seconds == pytest.approx(15)
    assert ledger.admit(25.0, 1) is None


def test_a_window_starts_empty_after_an_idle_time() -> None:
    ledger = QuotaLedger(Quota(window=FixedWindow(requests=2, seconds=10)))
    assert [ledger.admit(now, 1) is None for now in (0.0, 9.0, 9.5, 35.0, 36.0, 37.0)] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]


def test_a_daily_limit_names_a_short_delay_as_the_real_service_does() -> None:
    ledger = QuotaLedger(Quota(requests_per_day=1))
    assert ledger.admit(0.0, 1) is None
    rejection = ledger.admit(10.0, 1)
    assert rejection is not None
    assert (rejection.limit_name, rejection.retry_delay_seconds) == ("requests-per-day", 60)
    assert ledger.admit(DAY_SECONDS, 1) is None


def test_a_rejection_costs_nothing() -> None:
    ledger = QuotaLedger(Quota(requests_per_minute=600, tokens_per_minute=60))
    assert ledger.admit(0.0, 2) is None
    assert [ledger.admit(0.0, 2) is None for _ in range(50)] == [False] * 50
    assert ledger.admit(2.0, 2) is None


def test_each_model_has_its_own_limits() -> None:
    ledger = QuotaLedger(Quota(requests_per_minute=1))
    assert ledger.admit(0.0, 1, "a") is None
    assert ledger.admit(0.0, 1, "b") is None
    assert ledger.admit(0.0, 1, "a") is not None


def test_a_quota_can_omit_the_retry_delay() -> None:
    ledger = QuotaLedger(Quota(requests_per_minute=1, tells_retry_delay=False))
    ledger.admit(0.0, 1)
    rejection = ledger.admit(0.0, 1)
    assert rejection is not None
    assert rejection.retry_delay_seconds is None


@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute", "requests_per_day"])
def test_a_limit_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be >= 1; got 0"):
        Quota(**{name: 0})  # type: ignore[arg-type]


def test_a_burst_must_be_positive() -> None:
    with pytest.raises(ValueError, match="`burst_seconds` must be > 0"):
        Quota(burst_seconds=0)


@pytest.mark.parametrize(("requests", "seconds", "name"), [(0, 1.0, "requests"), (1, 0.0, "seconds")])
def test_a_window_needs_requests_and_a_length(requests: int, seconds: float, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be"):
        FixedWindow(requests=requests, seconds=seconds)


def test_a_location_has_its_own_quota_and_its_own_ledger() -> None:
    quotas = LocationQuotas(Quota(requests_per_minute=1), {"europe-west4": Quota(requests_per_minute=60)})
    assert [quotas.ledger("europe-west4").admit(0.0, 1, "m") is None for _ in range(3)] == [True, True, False]
    for location in ("us-central1", "global", ""):
        assert [quotas.ledger(location).admit(0.0, 1, "m") is None for _ in range(2)] == [True, False]
    assert quotas.locations == {"europe-west4"}


def test_a_change_of_one_quota_keeps_the_ledgers_of_the_others() -> None:
    quotas = LocationQuotas(Quota(requests_per_minute=1), {"europe-west4": Quota(requests_per_minute=1)})

    def admits() -> list[bool]:
        return [quotas.ledger(location).admit(0.0, 1, "m") is None for location in ("europe-west4", "global", "")]

    assert admits() == [True] * 3
    quotas.change(0.0, Quota(requests_per_minute=30))
    assert admits() == [False, True, True]
    quotas.change(0.0, Quota(requests_per_minute=30), "global")
    assert admits() == [False, True, False]


def test_the_quota_before_a_change_can_still_be_read() -> None:
    quotas = LocationQuotas(Quota(requests_per_minute=1), {})
    quotas.change(10.0, Quota(requests_per_minute=2))
    quotas.change(20.0, Quota(requests_per_minute=3), "global")
    found = [
        [quotas.at(when, place).requests_per_minute for when in (5, 10, 25)] for place in ("global", "x", None)
    ]
    assert found == [[1, 2, 3], [1, 2, 2], [1, 2, 2]]


@pytest.mark.parametrize(("model", "threshold"), [("gemini-2.5-flash", 4_000_000), ("gemini-2.5-pro", 1_000_000)])
def test_what_is_spread_evenly_below_the_threshold_is_always_admitted(model: str, threshold: int) -> None:
    ledger = QuotaLedger(Quota(usage_tier=2))
    gap = 60 * 10_000 / threshold
    assert all(ledger.admit(number * gap, 10_000, model) is None for number in range(1000))


def test_above_the_threshold_the_pool_admits_what_it_has_and_a_429_names_no_delay() -> None:
    for pool, admitted in ((0, 1.0), (30_000, 1.5)):
        ledger = QuotaLedger(Quota(usage_tier=60_000, pool_tokens_per_minute=pool))
        replies = [ledger.admit(number * 0.1, 300) for number in range(6000)]
        assert 300 * replies.count(None) / 600 == pytest.approx(1000 * admitted, rel=0.01)
        rejection = next(filter(None, replies))
        assert (rejection.limit_name, rejection.limit, rejection.retry_delay_seconds) == (
            "usage-tier",
            60_000,
            None,
        )


def test_a_spike_within_a_second_is_throttled_below_the_threshold_of_the_minute() -> None:
    ledger = QuotaLedger(Quota(usage_tier=60_000))
    replies = [ledger.admit(100.0, 300) for _ in range(100)]
    assert replies.count(None) == 6, "two seconds of the threshold"


def test_at_any_tier_a_model_has_30_000_requests_per_minute() -> None:
    ledger = QuotaLedger(Quota(usage_tier=3))
    replies = [ledger.admit(number / 1000, 1) for number in range(60_000)]
    assert replies.count(None) == pytest.approx(31_000, abs=2)


def test_a_negative_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="`pool_tokens_per_minute` must be >= 0; got -1"):
        Quota(usage_tier=1, pool_tokens_per_minute=-1)
