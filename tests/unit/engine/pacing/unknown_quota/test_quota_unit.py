from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.unknown_quota import hold, quota_unit
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from bench.simulation.bounds import learn_twice
from bench.simulation.servers import Bucket
from bench.simulation.token_cases import TokenCase

EVENTS = st.lists(
    st.tuples(
        st.floats(0, 30),
        st.sampled_from(["send", "send 20", "429", "429 of tokens", "429 of requests", "429 before", "answer"]),
        st.integers(0, 1_000_000),
    ),
    max_size=60,
)
#: State of a run that has found a quota of 50,000 tokens per second.
OF_TOKENS = LearnedRateState(
    base_rps=10.0,
    measured=50.0,
    measured_seconds=5.0,
    burst=20.0,
    is_next_run=1.0,
    unit_tokens=5000.0,
    tokens_evidence=2.0,
)
STATES = st.sampled_from([LearnedRateState(), OF_TOKENS])


def send(rate: LearnedRate, now: float, tokens: float = 1.0) -> float:
    """Waits for the admission of a request; returns its time."""
    while (wait := rate.admit(now, tokens)) > 0:
        assert wait > 1e-12
        now += wait
    return now


def replay(rate: LearnedRate, events: list[tuple[float, str, int]]) -> float:
    """Replays events; returns the time of the last."""
    now = 0.0
    for gap, event, tokens in events:
        now += gap
        if event.startswith("send"):
            for _ in range(20 if event == "send 20" else 1):
                now = send(rate, now, tokens)
        elif event == "answer":
            rate.settle(tokens, 5000.0, is_answered=True)
        else:
            sent_at = now = send(rate, now, tokens)
            now += 0.1 * (event == "429 before")
            unit = {"429 of tokens": "tokens", "429 of requests": "requests"}.get(event)
            rate.rejected(now, Rejection(None, sent_at, tokens, unit, 0.5))
    return now


@given(EVENTS, STATES, st.integers(1, 1_000_000))
def test_no_request_waits_longer_than_a_hold_whatever_its_length(events, state, tokens):
    rate = LearnedRate(dataclasses.replace(state))
    now = replay(rate, events)
    assert send(rate, now, tokens) - now <= 2 * hold.LONGEST_SECONDS + 1200
    assert all(math.isfinite(value) for value in dataclasses.astuple(rate.state))


@given(EVENTS, STATES, st.integers(1, 100_000))
def test_from_any_state_a_server_without_a_limit_is_used_within_half_an_hour(events, state, tokens):
    rate = LearnedRate(dataclasses.replace(state))
    now = max(replay(rate, events), rate.state.held_until)
    now = send(rate, now, tokens)
    ends, sent = now + 1800, 0
    while now < ends and sent < 1000:
        now, sent = send(rate, now, tokens), sent + 1
    assert sent == 1000


@given(EVENTS, st.floats(0.1, 60), st.integers(1, 1_000_000))
def test_a_retry_delay_is_obeyed_until_a_rate_is_measured_whatever_the_next_length(events, delay, tokens):
    rate = LearnedRate()
    now = replay(rate, events)
    if not rate.state.base_rps:
        rate.rejected(now, Rejection(delay, now, tokens))
        assert send(rate, now, 1.0) >= now + delay - 1e-6 or rate.state.base_rps


def log_uniform(seed: int) -> Iterator[float]:
    """Yields prompts of 20 to 50,000 tokens."""
    rng = random.Random(seed)
    while True:
        yield math.exp(rng.uniform(math.log(20), math.log(50_000)))


def run(rate: LearnedRate, bucket: Bucket, prompts: Iterator[float], *, is_of_tokens: bool, count: int) -> int:
    """Sends so many requests to a bucket whose 429s name the wait; returns the number of 429s."""
    now, rejected = 0.0, 0
    for tokens in itertools.islice(prompts, count):
        amount = tokens if is_of_tokens else 1.0
        while True:
            now = send(rate, now, tokens)
            if not (wait := bucket.wait_seconds(now, amount)):
                bucket.take(now, amount)
                break
            rejected += 1
            rate.rejected(now, Rejection(wait, now, tokens, chance=0.5))
    return rejected


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_of_tokens", [True, False], ids=["tokens", "requests"])
def test_what_a_quota_counts_is_learned_from_which_requests_it_rejects(seed, is_of_tokens):
    rate = LearnedRate()
    bucket = Bucket(32_000.0, 320_000.0) if is_of_tokens else Bucket(5.0, 50.0)
    assert run(rate, bucket, log_uniform(seed), is_of_tokens=is_of_tokens, count=600) <= 20
    assert bool(rate.state.unit_tokens) is is_of_tokens


def test_a_large_prompt_that_is_rejected_is_no_limit_of_requests():
    """Short prompts are sent as before, at ten times the rate that a limit of requests would have."""
    rate, now = LearnedRate(), 0.0
    for _ in range(20):
        now = send(rate, now, 100.0)
    now = send(rate, now, 40_000.0)
    rate.rejected(now, Rejection(1.0, now, 40_000.0))
    assert rate.state.unit_tokens
    began = now = send(rate, now, 40_000.0)
    now = send(rate, now + 1.0, 40_000.0)
    assert now - began > 1.25
    for _ in range(20):
        now = send(rate, now, 100.0)
    assert rate.state.tokens_evidence > quota_unit.CHANGES


@pytest.mark.parametrize(("unit", "tokens"), [("tokens", 10.0), ("requests", 50_000.0)])
def test_the_server_is_believed_if_it_names_the_quota(unit, tokens):
    rate, now = LearnedRate(), 0.0
    for _ in range(20):
        now = send(rate, now, 1000.0)
    now = send(rate, now, tokens)
    rate.rejected(now, Rejection(None, now, tokens, unit))
    assert bool(rate.state.unit_tokens) is (unit == "tokens")


def test_the_tokens_of_an_answer_correct_those_that_were_expected():
    rate, now = LearnedRate(dataclasses.replace(OF_TOKENS)), 0.0
    for _ in range(4):
        now = send(rate, now, 5000.0)
    rate.settle(5000.0, 10_000.0, is_answered=True)
    rate.settle(5000.0, 0.0)
    assert (rate.state.sent, rate.state.sent_tokens, rate.state.total) == (5.0, 25_000.0, 5.0)


def test_a_429_of_unknown_length_is_no_evidence():
    rate, now = LearnedRate(), 0.0
    for _ in range(20):
        now = send(rate, now, 1000.0)
    before = rate.state.tokens_evidence
    rate.rejected(now, Rejection(sent_at=now))
    assert rate.state.tokens_evidence == before


def test_a_request_counts_as_a_mean_one_while_its_tokens_are_not_known():
    """A quota of tokens that the run before has found; the first answer has twice the tokens of the mean."""
    rate, now = LearnedRate(dataclasses.replace(OF_TOKENS)), 0.0
    for _ in range(4):
        now = send(rate, now, 0.0)
    assert (rate.state.sent, rate.state.total) == (4.0, 4.0)
    rate.settle(0.0, 10_000.0, is_answered=True)
    assert (rate.state.sent, rate.state.total) == (5.0, 5.0)


def test_the_first_answers_change_neither_the_rate_nor_what_an_interval_has_sent():
    """The rate was measured in requests; then each turns out to have 105 tokens."""
    state = LearnedRateState(since=0.0, base_rps=10.0, measured=20.0, measured_seconds=2.0)
    for _ in range(10):
        quota_unit.sent(state, 0.0)
    for _ in range(4):
        quota_unit.settle(state, 0.0, 105.0)
    for _ in range(5):
        quota_unit.sent(state, 105.0)
    quota_unit.rejected(state, 1.5, 105.0, None)
    assert (state.unit_tokens, state.base_rps, state.measured) == (105.0, 10.0, 20.0)
    assert state.sent == pytest.approx(15.0)


def test_the_answer_to_a_request_of_an_earlier_interval_adds_nothing_to_this_one():
    state = LearnedRateState(since=0.0)
    quota_unit.sent(state, 0.0)
    quota_unit.begin_interval(state, 1.0)
    quota_unit.settle(state, 0.0, 105.0)
    assert (state.sent_tokens, state.unknown_sends) == (0.0, 0.0)


def test_a_429_before_the_first_answer_that_names_tokens_is_remembered():
    state = LearnedRateState(since=0.0)
    quota_unit.sent(state, 0.0)
    quota_unit.rejected(state, 1.0, 0.0, "tokens")
    quota_unit.refund(state, 0.0)
    assert (state.tokens_evidence, state.unit_tokens) == (quota_unit.MOST_EVIDENCE, 0.0)
    assert (state.sent_requests, state.unknown_sends) == (0.0, 0.0)


def test_an_interval_with_requests_of_unknown_length_is_no_evidence():
    state = LearnedRateState(since=0.0, tokens_evidence=0.0)
    interval(state, 100, 1000.0, 10.0)
    quota_unit.sent(state, 0.0)
    assert interval(state, 200, 500.0, 10.0) == 0.0


def interval(state: LearnedRateState, requests: int, tokens: float, seconds: float) -> float:
    """Ends an interval of so many requests with a 429 of a mean request; returns the evidence that it adds."""
    for _ in range(requests):
        quota_unit.sent(state, tokens)
    before, ended = state.tokens_evidence, state.since + seconds
    state.mean_tokens = tokens
    quota_unit.sent(state, tokens)
    quota_unit.rejected(state, ended, tokens, None)
    quota_unit.begin_interval(state, ended)
    return state.tokens_evidence - before


def test_when_prompts_become_shorter_the_rate_that_stays_the_same_shows_what_is_counted():
    state = LearnedRateState(since=0.0, tokens_evidence=0.0)
    assert interval(state, 100, 1000.0, 10.0) == 0.0
    assert interval(state, 200, 500.0, 10.0) > 1.0
    assert interval(state, 200, 250.0, 10.0) < -1.0


def test_an_interval_that_was_mostly_held_shows_nothing():
    state = LearnedRateState(since=0.0, tokens_evidence=0.0)
    interval(state, 100, 1000.0, 10.0)
    state.held_seconds = 9.0
    assert interval(state, 200, 500.0, 10.0) == 0.0


def learned(**changes: float) -> LearnedRateState:
    """Returns a state that has measured ten requests of 1,000 tokens per second."""
    fields = {
        "base_rps": 10.0,
        "measured": 20.0,
        "measured_seconds": 2.0,
        "since": 0.0,
        "last_rps": 10.0,
        "last_tps": 10_000.0,
        "last_sends": 20.0,
        "mean_tokens": 400.0,
        "mean_sends": 50.0,
    }
    return LearnedRateState(**fields | changes)


def test_another_mean_length_changes_no_rate_of_tokens():
    state = learned(unit_tokens=1000.0, tokens_evidence=4.0)
    quota_unit.rejected(state, 1.0, 400.0, "tokens")
    assert state.unit_tokens == 400.0
    assert state.base_rps * state.unit_tokens == pytest.approx(10_000.0)
    assert state.measured / state.measured_seconds * state.unit_tokens == pytest.approx(10_000.0)


def test_a_unit_is_the_present_mean_also_while_there_is_no_evidence():
    state = LearnedRateState(
        since=0.0, base_rps=1.0, unit_tokens=5000.0, mean_tokens=50.0, mean_sends=9.0, tokens_evidence=0.0
    )
    quota_unit.rejected(state, 1.0, 50.0, None)
    assert (state.unit_tokens, state.base_rps) == (50.0, 100.0)


def test_a_request_waits_at_most_a_minute_for_its_own_tokens():
    state = learned(base_rps=0.1, unit_tokens=100.0)
    assert quota_unit.waited_cost(state, 5000.0) == pytest.approx(6.0)
    assert quota_unit.waited_cost(state, 2.0) == 2.0
    assert quota_unit.waited_cost(learned(base_rps=0.001, unit_tokens=100.0), 5000.0) == 1.0


def test_the_next_run_counts_what_the_first_one_has_found():
    state = learned(unit_tokens=400.0, tokens_evidence=4.0).for_next_run()
    assert (state.unit_tokens, state.tokens_evidence) == (400.0, 2.0)
    assert learned(tokens_evidence=-4.0).for_next_run().tokens_evidence == -2.0


@pytest.mark.parametrize("seed", [24, 37])
def test_a_quota_of_tokens_is_used_in_time_with_few_429s_in_the_first_run_and_in_the_next(seed):
    """A tenth of the cases of `python -m bench.simulation --bounds`."""
    for result in learn_twice(TokenCase.draw(seed)):
        assert result.is_frugal
        assert result.is_fast
