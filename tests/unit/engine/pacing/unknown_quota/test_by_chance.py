from __future__ import annotations

import statistics

import pytest

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.unknown_quota import by_chance
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from bench.simulation.cases import Case, run_twice
from bench.simulation.chances import ChanceCase, job_ratio, simulate_chance
from bench.simulation.servers import Bucket


def send(rate: LearnedRate, now: float, *, backlog: float = 0.0) -> float:
    """Waits for the admission of a request; returns its time."""
    while (wait := rate.admit(now, 1, backlog)) > 0:
        now += wait
    return now


def chance(**changes: float) -> LearnedRate:
    """Returns the rate of a server that is known to reject a tenth of the requests by chance."""
    fields = {"share": 0.1, "started_at": 0.0, "grown_at": 0.0}
    return LearnedRate(LearnedRateState(**fields | changes))


def large_batch(took: float, advised: float | None = 1.0) -> tuple[LearnedRate, float, float]:
    """Returns the rate after 20 requests of a large batch, of which the last is rejected after some seconds.

    It comes with the time, and with the duration of the hold.
    """
    rate, now = LearnedRate(), 0.0
    for _ in range(20):
        now = send(rate, now, backlog=4000)
    return rate, now + took, rate.rejected(now + took, Rejection(advised, sent_at=now))


@pytest.mark.parametrize("rps", [None, 100.0])
@pytest.mark.parametrize(("share", "rejection_seconds"), [(0.05, 0.05), (0.1, 0.05), (0.1, 0.002), (0.2, 0.05)])
def test_the_rate_is_that_of_the_requests_in_flight_or_of_a_quota_below(share, rejection_seconds, rps):
    case = ChanceCase(share=share, is_advised=True, rps=rps, rejection_seconds=rejection_seconds)
    result = simulate_chance(case, seconds=100.0, warm_up=60.0)
    assert result.ratio >= 0.85
    assert result.rejected <= 1.6 * share + 0.02


def test_a_job_takes_little_longer_than_with_a_plain_client():
    """Before: more than an hour."""
    cases = (
        ChanceCase(share=0.1, is_advised=True, rps=None, rejection_seconds=0.05, seed=seed) for seed in range(5)
    )
    assert statistics.median(map(job_ratio, cases)) <= 1.5


@pytest.mark.parametrize("took", [0.002, 0.05])
def test_chance_is_recognised_within_twenty_429s(took):
    rate, now, rejected = LearnedRate(), 0.0, 0
    for number in range(200):
        now = send(rate, now, backlog=4000)
        if number % 10 == 9 and not rate.state.is_by_chance:
            rate.rejected(now + took, Rejection(1.0, sent_at=now))
            now, rejected = now + took, rejected + 1
    assert rate.state.is_by_chance
    assert rejected <= 20
    assert now < 2


def test_requests_in_flight_that_are_admitted_end_the_wait_after_a_429():
    rate, now, held = large_batch(0.05)
    assert held == 0
    assert send(rate, now) == pytest.approx(now + 0.06, abs=0.01)
    assert rate.state.evidence == 1 + by_chance.OF_TRIAL


def test_requests_in_flight_that_are_rejected_show_a_quota():
    rate, now, _ = large_batch(0.05)
    for _ in range(10):
        rate.rejected(now + 0.01, Rejection(1.0, sent_at=now - 0.01))
    assert send(rate, now) >= now + 1.0
    assert rate.state.evidence == 1 - by_chance.OF_TRIAL


def test_requests_are_sent_at_once_where_too_few_are_in_flight():
    rate, now, _ = large_batch(0.002)
    sent = [rate.admit(now, 1) for _ in range(6)]
    number = sent.count(0.0)
    assert 3 <= number <= by_chance.TRIAL_SENDS
    assert all(0 < wait < 0.01 for wait in sent[number:])
    send(rate, now)
    assert rate.state.trials == 1


def test_if_these_are_rejected_the_retry_delay_is_observed():
    rate, now, _ = large_batch(0.002)
    while rate.admit(now, 1) == 0:
        rate.rejected(now + 0.002, Rejection(1.0, sent_at=now))
    assert send(rate, now) >= now + 1.0


def test_the_first_429_of_a_small_batch_is_obeyed():
    rate, now = LearnedRate(), 0.0
    for _ in range(5):
        now = send(rate, now)
    assert rate.rejected(now, Rejection(1.0)) == 1.0
    assert send(rate, now) >= now + 1.0


@pytest.mark.parametrize("advised", [None, 0.2])
def test_a_429_without_a_retry_delay_or_with_a_short_one_is_not_doubted(advised):
    rate, _, held = large_batch(0.05, advised)
    assert held > 0
    assert rate.state.evidence == 0


def test_a_429_after_many_requests_is_evidence_of_a_quota():
    rate, now = LearnedRate(), 0.0
    for _ in range(int(by_chance.CLOSE_SENDS) + 2):
        now = send(rate, now)
    assert rate.rejected(now, Rejection(1.0)) == 1.0
    assert rate.state.evidence == -by_chance.OF_TRIAL


@pytest.mark.parametrize(("base_rps", "ratio"), [(200.0, 1 / by_chance.OTHER_RATE), (20.0, by_chance.OTHER_RATE)])
def test_after_a_trial_the_rate_is_another_one_until_there_is_no_429(base_rps, ratio):
    state = LearnedRateState(trials=1.0)
    assert by_chance.rps(state, base_rps) == pytest.approx(ratio * base_rps)
    state.apart_sends = by_chance.CLOSE_SENDS + 1
    assert by_chance.rps(state, base_rps) == base_rps


@pytest.mark.parametrize(("apart_sends", "sent_at"), [(0.0, 1.0), (3.0, 0.9)])
def test_a_late_429_of_a_trial_that_has_passed_holds_nothing_and_is_no_further_evidence(apart_sends, sent_at):
    state = LearnedRateState(trials=1.0, evidence=3.0, apart_sends=apart_sends, apart_at=1.0)
    assert by_chance.explains(state, 1.1, sent_at, 1.0)
    assert (state.evidence, state.trial_until) == (3.0, -1.0)


def test_a_429_within_the_share_holds_nothing():
    rate = chance()
    now = send(rate, 0.0, backlog=4000)
    assert rate.rejected(now, Rejection(1.0)) == 0.0
    assert rate.state.since < 0


def test_more_429s_show_a_quota_below_whose_hold_is_not_that_of_one_request():
    rate, now, number = chance(total=400.0), 0.0, 0
    while not (seconds := rate.rejected(now, Rejection(60.0))):
        now, number = send(rate, now, backlog=4000), number + 1
    assert number <= 2 * by_chance.EXCESS
    assert seconds < 1
    assert rate.state.since >= 0
    assert rate.state.is_by_chance


def test_a_wrong_decision_is_left_with_the_first_of_these():
    rate, now = chance(), 0.0
    while not rate.rejected(now, Rejection(1.0)):
        now = send(rate, now, backlog=4000)
    assert not rate.state.is_by_chance
    assert rate.state.evidence == -by_chance.ENOUGH


def test_the_share_falls_with_the_429s_until_it_is_none():
    rate, now = chance(), 0.0
    for _ in range(1000):
        now = send(rate, now, backlog=4000)
    assert not rate.state.is_by_chance


def test_a_quota_is_found_after_rejections_by_chance_have_ended():
    rate, now, admitted, bucket = chance(), 0.0, 0, Bucket(20.0, 20.0)
    while now < 60:
        now = send(rate, now, backlog=4000)
        if wait := bucket.wait_seconds(now):
            rate.rejected(now, Rejection(wait))
        else:
            bucket.take(now)
            admitted += 1
    assert admitted > 0.9 * 60 * 20


@pytest.mark.parametrize("seed", [2, 8])
def test_a_pool_is_not_taken_for_chance(seed):
    case = Case(
        shape="pool",
        rps=40.0,
        seconds=0.0,
        advice="constant",
        latency_seconds=0.2,
        rejection_seconds=0.05,
        rows=2400,
        slots=64,
        used=0.0,
        seed=seed,
    )
    rates = []

    def make(state: LearnedRateState | None) -> LearnedRate:
        rates.append(LearnedRate(state))
        return rates[-1]

    first, later = run_twice(case, make)
    assert first.is_frugal
    assert later.is_frugal
    assert not any(rate.state.is_by_chance for rate in rates)


def test_the_next_run_knows_the_share_and_begins_like_a_first_one():
    state = chance(base_rps=2.0, measured=50.0, measured_seconds=25.0, since=1.0).state.for_next_run()
    assert state == LearnedRateState(share=0.1)


def test_a_slow_rate_that_was_learned_wrongly_is_forgotten_within_seconds():
    """400 rows took 80 s."""
    rate, now = LearnedRate(LearnedRateState(base_rps=1.0, measured=50.0, burst=5.0).for_next_run()), 0.0
    for _ in range(400):
        now = send(rate, now, backlog=400)
    assert now < 45


def test_it_is_forgotten_where_requests_are_rejected_by_chance_as_well():
    rate, now, number = LearnedRate(LearnedRateState(base_rps=1.0, measured=50.0).for_next_run()), 0.0, 0
    while not rate.state.is_by_chance and now < 200:
        now, number = send(rate, now, backlog=400), number + 1
        if number % 10 == 0:
            rate.rejected(now, Rejection(1.0, sent_at=now))
    assert number <= 200
    assert now < 60
