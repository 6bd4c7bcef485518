"""The rate of Standard PayGo against the emulated usage tiers, without clock and network."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmbeam_sandbox.models.quota import Quota, QuotaLedger

from airflow_provider_llmbeam.engine.pacing.prioritized import PrioritizedRate
from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from bench.simulation.simulator import Client, Request, Simulation

THRESHOLD = 2_000_000
SECONDS, WARM_UP = 150.0, 60.0


def simulate(quota, governor=None, *, slots=2000, input_tokens=900):
    """Returns the requests that a job without an end sends in that time."""
    governor = governor or PrioritizedRate(tokens_per_minute=THRESHOLD)
    client = Client(governor, itertools.repeat(Request(input_tokens, 60)), slots, 10**6, has_quota=True)
    Simulation(QuotaLedger(quota), [client], lambda rng: 2 * rng.lognormvariate(-0.1, 0.4)).run(SECONDS)
    return client.records


def tokens_per_minute(records):
    answered = [each for each in records if each.is_billed and WARM_UP <= each.received_at < SECONDS]
    return sum(each.input_tokens + each.output_tokens for each in answered) / (SECONDS - WARM_UP) * 60


def rejected_ratio(records):
    return sum(not each.is_billed for each in records) / len(records)


def test_a_job_below_the_threshold_is_never_rejected():
    records = simulate(Quota(usage_tier=1), slots=40)
    assert 0.4 * THRESHOLD < tokens_per_minute(records) < 0.8 * THRESHOLD
    assert rejected_ratio(records) == 0


@pytest.mark.parametrize("pool", [0, THRESHOLD // 2, THRESHOLD])
def test_a_job_above_it_gets_the_threshold_and_what_the_pool_has(pool):
    records = simulate(Quota(usage_tier=1, pool_tokens_per_minute=pool))
    assert tokens_per_minute(records) > 0.97 * (THRESHOLD + pool)
    assert rejected_ratio(records) < 0.03


def test_a_job_begins_without_the_spike_by_which_an_unknown_rate_is_learned():
    first = [
        Counter(int(each.received_at) for each in simulate(Quota(usage_tier=1), governor))[0]
        for governor in (PrioritizedRate(tokens_per_minute=THRESHOLD), LearnedRate())
    ]
    assert first[0] <= THRESHOLD / 60 / 960 + 1 < 100 < first[1]


def test_where_others_use_half_of_the_threshold_the_job_takes_the_rest():
    records = simulate(Quota(usage_tier=THRESHOLD // 2))
    assert tokens_per_minute(records) > 0.97 * THRESHOLD / 2
    assert rejected_ratio(records) < 0.04


def test_the_limit_of_requests_holds_for_short_prompts():
    governor = PrioritizedRate(tokens_per_minute=10_000_000, requests_per_minute=30_000)
    records = simulate(Quota(usage_tier=3), governor, input_tokens=10)
    assert max(Counter(int(each.received_at) for each in records).values()) <= 30_000 / 60 + 11
    assert rejected_ratio(records) == 0


@pytest.mark.parametrize("is_told_later", [False, True])
def test_machines_share_the_threshold(is_told_later):
    quarter = PrioritizedRate(tokens_per_minute=THRESHOLD, expected_workers=1 if is_told_later else 4)
    quarter.share_among(4)
    assert quarter.admit(0.0, 1000) == 0
    assert quarter.admit(0.0, 1000) == pytest.approx(4 * 1000 / (THRESHOLD / 60))


def test_429s_of_a_rate_above_the_threshold_cut_it_no_lower():
    rate = PrioritizedRate(tokens_per_minute=60_000)
    now = 0.0
    while rate.state.tps < 2000:
        now += rate.admit(now, 10) or 0.0
    for _ in range(1000):
        rate.rejected(now + 0.1, Rejection(sent_at=now - 0.1, tokens=10))
    assert rate.state.tps == 1000
    rate.rejected(now + 0.1, Rejection(sent_at=now + 0.05, tokens=10))
    assert rate.state.tps < 1000


def test_a_stated_delay_holds_requests_only_at_the_threshold():
    rate = PrioritizedRate(tokens_per_minute=60_000)
    rate.admit(0.0, 10)
    assert rate.rejected(1.0, Rejection(sent_at=0.5, retry_after_seconds=7.0)) == 7.0
    assert rate.admit(1.0, 10) == 7.0


@given(
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(["send", "429", "429 for 3 s", "answer"])), max_size=80),
    st.floats(200_000, 1e8),
    st.integers(1, 16),
)
def test_no_request_waits_forever_regardless_of_the_history(events, threshold, workers):
    rate, now, rng = PrioritizedRate(tokens_per_minute=threshold, expected_workers=workers), 0.0, random.Random(1)
    for gap, event in events:
        now += gap
        match event:
            case "send":
                rate.admit(now, rng.uniform(1, 1000))
            case "answer":
                rate.settle(10, rng.uniform(0, 1e9), is_answered=True)
            case _:
                rate.rejected(now, Rejection(3.0 if "for" in event else None, now - 0.1, 10))
    for _ in range(2000):
        if (wait := rate.admit(now, 10)) == 0:
            return
        now += min(wait, 1.0)
    raise AssertionError(rate.state)
