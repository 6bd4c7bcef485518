from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.unknown_quota import hold, shared_pool
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from bench.jobs import JOBS
from bench.simulation.bounds import learn_twice, pool_of_40_requests_per_second
from bench.simulation.cases import Case, run_case
from bench.simulation.servers import Bucket
from bench.simulation.simulator import simulate, simulate_job

#: State of a run that has found a pool of 20 requests per second.
POOL = LearnedRateState(
    base_rps=20.0, measured=50.0, measured_seconds=2.5, burst=10.0, chance=0.9, is_next_run=1.0
)
EVENTS = st.lists(
    st.tuples(
        st.floats(0, 30),
        st.sampled_from(["send", "send 20", "429", "429 for 3 s", "429 of a request before", "pause"]),
    ),
    max_size=80,
)


def send(rate: LearnedRate, now: float, *, backlog: float = 0.0) -> float:
    """Waits for the admission of a request; returns its time."""
    while (wait := rate.admit(now, 1, backlog)) > 0:
        assert wait > 1e-12
        now += wait
    return now


def replay(rate: LearnedRate, events: list[tuple[float, str]]) -> float:
    """Replays events; returns the time of the last."""
    now = 0.0
    for gap, event in events:
        now += gap
        match event:
            case "send":
                rate.admit(now, 1)
            case "send 20":
                for _ in range(20):
                    now = send(rate, now)
            case "429":
                now = send(rate, now)
                rate.rejected(now, Rejection())
            case "429 for 3 s":
                now = send(rate, now)
                rate.rejected(now, Rejection(3.0, chance=0.5))
            case "429 of a request before":
                now = send(rate, now)
                rate.rejected(now + 0.1, Rejection(sent_at=now))
            case "pause":
                now += 600
    return now


STATES = st.sampled_from([LearnedRateState(), POOL])


@given(EVENTS, STATES)
def test_no_request_waits_longer_than_a_hold_and_the_state_stays_finite(events, state):
    rate = LearnedRate(dataclasses.replace(state))
    now = replay(rate, events)
    # A rate of a request in ten minutes doubles every 15 s in which requests wait.
    assert send(rate, now) - now <= 2 * hold.LONGEST_SECONDS + 1200
    assert all(math.isfinite(value) for value in dataclasses.astuple(rate.state))


@given(EVENTS, STATES)
def test_from_any_state_a_server_without_a_limit_is_used_within_half_an_hour(events, state):
    rate = LearnedRate(dataclasses.replace(state))
    now = max(replay(rate, events), rate.state.held_until)
    now = send(rate, now)
    ends, sent = now + 1800, 0
    while now < ends and sent < 3000:
        now, sent = send(rate, now), sent + 1
    assert sent == 3000


def test_a_rate_far_below_what_the_first_burst_shows_is_left_within_ten_minutes():
    """Such a rate is that of an hour in which the server rejected nearly all."""
    state = LearnedRateState(started_at=0.0, since=3600.0, burst=1000.0, total=1020.0)
    rate = LearnedRate(dataclasses.replace(state, base_rps=0.005, measured=20.0, measured_seconds=4000.0))
    now, sent = 3600.0, 0
    while now < 4200 and sent < 3000:
        now, sent = send(rate, now), sent + 1
    assert sent == 3000


def test_a_quota_of_one_request_per_minute_rejects_few():
    rate, now, admitted, rejected = LearnedRate(), 0.0, -60.0, 0
    for _ in range(300):
        now = send(rate, now)
        if now - admitted < 60:
            rejected += 1
            rate.rejected(now + 0.1, Rejection(sent_at=now))
        else:
            admitted = now
    assert rejected <= 30


@given(EVENTS, st.floats(0.1, 60))
def test_a_retry_delay_is_obeyed_until_a_rate_is_measured(events, delay):
    rate = LearnedRate()
    now = replay(rate, events)
    if not rate.state.base_rps:
        rate.rejected(now, Rejection(delay))
        assert send(rate, now) >= now + delay - 1e-6 or rate.state.base_rps


def test_a_batch_is_sent_quickly_until_a_429():
    rate, now = LearnedRate(), 0.0
    for _ in range(3000):
        now = send(rate, now, backlog=3000)
    assert 1.5 < now < 3


def test_a_first_429_that_takes_50_ms_finds_a_ninth_of_the_requests_of_a_small_batch_in_flight():
    rate, now = LearnedRate(), 0.0
    times = [now := send(rate, now, backlog=100) for _ in range(100)]
    for number, start in enumerate(times):
        assert sum(start <= time < start + 0.05 for time in times) <= 3 + number / 9


def test_the_rate_is_that_between_two_429s():
    rate, now = LearnedRate(), 0.0
    for _ in range(50):
        now = send(rate, now)
    rate.rejected(now, Rejection())
    for _ in range(40):
        now = send(rate, now + 0.1)
    since = rate.state.since
    now = send(rate, now)
    rate.rejected(now, Rejection())
    assert rate.state.measured / rate.state.measured_seconds == pytest.approx(40 / (now - since))


def test_a_429_of_a_request_before_the_hold_is_no_further_evidence():
    rate = LearnedRate()
    for number in range(10):
        rate.admit(number * 0.1, 1)
    assert rate.rejected(1.0, Rejection(5.0, sent_at=0.9)) == 5.0
    before = dataclasses.replace(rate.state)
    assert rate.rejected(1.1, Rejection(2.0, sent_at=0.9)) == pytest.approx(4.9)
    assert rate.rejected(1.2, Rejection(30.0, sent_at=0.9)) == pytest.approx(30.0)
    assert rate.state.first_rps == before.first_rps


def test_holds_without_a_retry_delay_meet_the_common_windows():
    rate, now = LearnedRate(), send(LearnedRate(), 0.0)
    rate.admit(now, 1)
    resumed = []
    for _ in range(6):
        rate.rejected(now, Rejection())
        now = send(rate, now)
        resumed.append(now)
    assert resumed == pytest.approx([0.3, 1.1, 4.0, 12.0, 30.0, 61.0], abs=0.01)


@pytest.mark.parametrize(("delay", "seconds"), [(86_400.0, hold.LONGEST_SECONDS), (0.0, 0.02)])
def test_a_retry_delay_is_bounded(delay, seconds):
    assert LearnedRate().rejected(0.0, Rejection(delay)) == seconds


def test_machines_that_were_rejected_together_resume_at_most_a_tenth_of_a_second_apart():
    assert LearnedRate().rejected(0.0, Rejection(2.0, chance=1.0)) == pytest.approx(2.1)


def test_a_job_whose_first_request_is_rejected_is_not_slow():
    """Others have used the window."""
    rate = LearnedRate()
    rate.admit(0.0, 1)
    rate.rejected(0.05, Rejection(2.0, sent_at=0.0))
    now, sent = 2.1, 0
    while now < 30:
        now, sent = send(rate, now), sent + 1
    assert sent > 100


def test_a_window_that_others_had_used_at_first_is_used_within_a_minute():
    rate, now = LearnedRate(), 0.0
    for _ in range(5):
        now = send(rate, now)
    rate.rejected(now, Rejection(10.0))
    sent, ends = 0, now + 60.0
    while (now := send(rate, now)) < ends:
        sent += 1
    assert sent > 1000


def test_a_quota_refills_the_burst_that_it_admitted_within_a_minute():
    """Others send three requests per second to the log of a minute: its rate is not that of the first interval."""
    rate, now = LearnedRate(), 0.0
    for _ in range(1200):
        now = send(rate, now, backlog=3000)
    rate.rejected(now, Rejection())
    for _ in range(2):
        now = send(rate, now)
        now = send(rate, now + 0.3)
        rate.rejected(now, Rejection())
    assert rate.state.measured / rate.state.measured_seconds < 10
    assert 0.6 * 1200 / 60 < rate.state.base_rps < 1200 / 60


@pytest.mark.parametrize("seconds", [60.0, 180.0])
def test_a_quota_that_falls_to_a_tenth_costs_few_429s(seconds):
    """Measured: 54 and 55 429s; 307 after a minute if no interval contradicted the burst so far."""
    rate = LearnedRate()
    run(rate, 0.0, seconds, Bucket(50.0, 50.0))
    smaller = Bucket(5.0, 5.0)
    smaller.wait_seconds(seconds)
    rejected, _ = run(rate, seconds, seconds + 120, smaller)
    assert 0 < rejected < 100


def test_after_a_hold_that_was_too_long_the_rate_is_that_without_it_until_further_holds_fail():
    rate, now = LearnedRate(), 0.0
    for _ in range(50):
        now = send(rate, now)
    rate.rejected(now, Rejection(10.0))
    for _ in range(40):
        now = send(rate, now + 0.05)
    rate.rejected(now, Rejection())
    first_rps, slow_rps = rate.state.base_rps, rate.state.measured / rate.state.measured_seconds
    assert first_rps > 2 * slow_rps
    for _ in range(8):
        now = send(rate, now)
        rate.rejected(now, Rejection())
    assert rate.state.base_rps == pytest.approx(slow_rps)


def test_a_429_after_the_rate_has_doubled_leaves_it_between_the_measured_rate_and_the_present_one():
    rate, now = measured(0.6 * shared_pool.LEAST_RPS)
    now = send(rate, now)
    rate.rejected(now, Rejection())
    before = rate.state.base_rps
    for _ in range(1000):
        now = send(rate, now)
    last_rps = 1 / (send(rate, now) - now)
    rate.rejected(now, Rejection())
    assert last_rps > 4 * before
    assert before < rate.state.base_rps < 0.8 * last_rps


def test_a_pause_is_no_evidence_of_a_larger_quota_or_of_a_smaller_one():
    rate, now = measured(10.0)
    rate.rejected(now, Rejection())
    before = rate.state.measured / rate.state.measured_seconds
    for number in range(30):
        now = send(rate, now + 1000.0 * (number == 20))
    rate.rejected(now, Rejection())
    assert rate.state.measured / rate.state.measured_seconds == pytest.approx(before, rel=0.1)


def measured(rps: float) -> tuple[LearnedRate, float]:
    """Returns a rate that was learned from a bucket, and the time."""
    rate, now = LearnedRate(), 0.0
    bucket = Bucket(rps, 1.0)
    for _ in range(300):
        now = send(rate, now)
        wait = bucket.wait_seconds(now)
        if wait:
            rate.rejected(now, Rejection(wait))
        else:
            bucket.take(now)
    return rate, now


@pytest.mark.parametrize(("before", "after"), [(5.0, 50.0), (50.0, 5.0), (2.0, 4.0)])
def test_a_changed_quota_is_relearned_within_thousand_requests(before, after):
    rate, now = measured(before)
    bucket = Bucket(after, 1.0)
    bucket.wait_seconds(now)
    admitted = []
    while len(admitted) < 1200:
        now = send(rate, now)
        wait = bucket.wait_seconds(now)
        if wait:
            rate.rejected(now, Rejection(wait))
        else:
            bucket.take(now)
            admitted.append(now)
    assert 200 / (admitted[-1] - admitted[-201]) > 0.7 * after


def test_the_next_run_begins_at_the_learned_rate():
    rate, _ = measured(10.0)
    next_run, first_run = LearnedRate(rate.state.for_next_run()), LearnedRate()
    rejected, admitted = run(next_run, 0.0, 60.0, Bucket(10.0, 1.0))
    assert rejected <= 3
    assert len(admitted) > 0.95 * 600
    assert run(first_run, 0.0, 60.0, Bucket(10.0, 1.0))[0] > 3


@pytest.mark.parametrize(("before", "after"), [(5.0, 50.0), (50.0, 5.0), (20.0, 40.0)])
def test_a_quota_that_changed_between_two_runs_is_relearned_within_a_minute(before, after):
    rate = LearnedRate(measured(before)[0].state.for_next_run())
    _, admitted = run(rate, 0.0, 60.0, Bucket(after, 1.0))
    assert sum(at > 55 for at in admitted) > 0.7 * 5 * after


def test_the_next_run_learns_again_if_nothing_was_learned():
    rate = LearnedRate()
    for number in range(100):
        send(rate, float(number))
    assert rate.state.for_next_run() == LearnedRateState()


def run(rate: LearnedRate, now: float, until: float, bucket: Bucket) -> tuple[int, list[float]]:
    """Sends to a bucket; returns the number of 429s, and the times of the admitted requests."""
    rejected, admitted = 0, []
    while now < until:
        now = send(rate, now)
        if wait := bucket.wait_seconds(now):
            rate.rejected(now, Rejection(wait))
            rejected += 1
        else:
            bucket.take(now)
            admitted.append(now)
    return rejected, admitted


@pytest.mark.parametrize("has_retry_delay", [False, True])
@pytest.mark.parametrize("outage_at", [0.0, 60.0])
@pytest.mark.parametrize("rps", [0.5, 5.0])
def test_after_an_outage_of_ten_minutes_a_quota_is_used_at_its_rate(rps, outage_at, has_retry_delay):
    rate, bucket, outage_until = LearnedRate(), Bucket(rps, 20 * rps), outage_at + 600
    run(rate, 0.0, outage_at, bucket)
    rejected, admitted, now = 0, 0, outage_at
    while admitted < 200 * rps:
        now = send(rate, now)
        wait = 10.0 if now < outage_until else bucket.wait_seconds(now)
        if wait:
            rate.rejected(now, Rejection(wait if has_retry_delay else None))
            rejected += 1
        else:
            bucket.take(now)
            admitted += 1
    assert now - outage_until <= 200 * (1.3 if outage_at == 0 else 1.7)
    assert rejected <= (75 if has_retry_delay else 45)


def test_the_next_run_goes_on_at_the_learned_rate_after_an_outage_at_its_begin():
    rate = LearnedRate(LearnedRateState(base_rps=0.5, measured=50.0, measured_seconds=100.0, is_next_run=1.0))
    now = 0.0
    while (now := send(rate, now)) < 600:
        rate.rejected(now, Rejection())
    times = [now := send(rate, now) for _ in range(10)]
    assert times[-1] - times[0] >= 10


@pytest.mark.parametrize("machines", [1, 4])
def test_machines_use_nearly_all_of_a_quota_that_is_not_known(machines):
    found = simulate(LearnedRate, machines=machines, requests_per_minute=600, seconds=900)
    assert found.utilisation_ratio > 0.95
    assert found.rejected_ratio < 0.01


@pytest.mark.parametrize("processes", [1, 2])
def test_processes_that_share_a_governor_learn_an_unknown_limit_together(processes):
    job = next(job for job in JOBS if job.letter == "B")
    records = simulate_job(job, processes=processes)
    assert len(records) <= 255
    assert max(record.received_at for record in records) <= 48


def test_a_shared_pool_is_used_with_few_429s_in_the_first_run_and_in_the_next():
    for result in learn_twice(pool_of_40_requests_per_second(2)):
        assert 1 / result.time_ratio >= 0.85
        assert result.rejected <= 0.045 * result.requests


@pytest.mark.parametrize("seed", [9, 12, 30, 33, 38])
def test_a_quota_is_not_taken_for_a_pool(seed):
    case = Case.draw(seed)
    assert case.rps >= shared_pool.LEAST_RPS
    rate = LearnedRate()
    run_case(case, lambda: rate)
    assert rate.state.chance <= shared_pool.POOL


@pytest.mark.parametrize("seed", [9012, 9007, 9008, 9003, 9028])
def test_a_server_of_each_shape_is_used_in_time_with_few_429s_in_the_first_run_and_in_the_next(seed):
    """A tenth of the cases of `python -m bench.simulation --bounds`."""
    for result in learn_twice(Case.draw(seed)):
        assert result.is_frugal
        assert result.is_fast


def test_a_server_that_rejects_within_2_ms_is_not_asked_for_what_a_hold_has_left_out():
    """A bucket without a burst; with a catch-up after each hold, 324 of 2,324 requests were rejected, now 8."""
    case = dataclasses.replace(Case.draw(40003), rejection_seconds=0.002, rows=2000)
    assert run_case(case, LearnedRate).is_frugal


def test_a_state_is_made_of_floats():
    state = LearnedRate().state
    assert LearnedRateState(*map(float, dataclasses.astuple(state))) == state


def test_a_rate_that_nothing_has_measured_is_cut_after_a_hold_that_was_too_short():
    """So it is after the unit has changed to tokens, where the burst so far gives the rate."""
    state = LearnedRateState(
        started_at=0.0, since=0.0, base_rps=1.0, holds=1.0, resumed_at=10.0, rejection_seconds=0.05
    )
    rate = LearnedRate(state)
    rate.rejected(10.02, Rejection(sent_at=10.01))
    assert state.base_rps == pytest.approx(LearnedRate.HOLD_CUT)
