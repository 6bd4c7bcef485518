from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.retry import (
    FIRST_BACKOFF_SECONDS,
    LONGEST_ADVISED_SECONDS,
    LONGEST_BACKOFF_SECONDS,
    TRANSIENT_KINDS,
    RequestError,
    RetryPolicy,
)
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS, FailureKind

POLICY = RetryPolicy(max_attempts=5, max_throttled_seconds=60.0)
RETRIED = {"server_error", "garbage", "timeout", "connection", "throttled"}

chances = st.floats(0, 1, exclude_max=True)


def wait(kind: FailureKind, *, attempts: int = 1, throttled_seconds: float = 0.0, chance: float = 0.5):
    return POLICY.wait_seconds(
        RequestError(kind, "no"), attempts=attempts, throttled_seconds=throttled_seconds, chance=chance
    )


@pytest.mark.parametrize("kind", FAILURE_KINDS)
def test_only_failures_that_may_succeed_later_are_retried(kind: FailureKind) -> None:
    assert (wait(kind) is not None) == (kind in RETRIED)


@pytest.mark.parametrize("kind", FAILURE_KINDS)
def test_only_a_429_costs_time_but_no_attempts(kind: FailureKind) -> None:
    assert (wait(kind, attempts=1000) is not None) == (kind == "throttled")


@pytest.mark.parametrize("kind", sorted(TRANSIENT_KINDS))
def test_the_last_attempt_is_the_last(kind: FailureKind) -> None:
    assert wait(kind, attempts=4) is not None
    assert wait(kind, attempts=5) is None


def test_a_429_waits_in_the_governor_and_not_in_the_retry_policy() -> None:
    assert wait("throttled", throttled_seconds=59.9) == 0.0


def test_a_request_that_gets_only_429s_for_too_long_is_given_up() -> None:
    assert wait("throttled", throttled_seconds=60.0) is None


@given(st.sampled_from(sorted(TRANSIENT_KINDS)), st.integers(1, 4), chances)
def test_jitter_is_full_and_bounded(kind: FailureKind, attempts: int, chance: float) -> None:
    seconds = wait(kind, attempts=attempts, chance=chance)
    assert seconds is not None
    assert 0 <= seconds <= min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**attempts)
    assert seconds == pytest.approx(chance * FIRST_BACKOFF_SECONDS * 2**attempts)


@given(st.integers(1, 99), chances)
def test_no_wait_exceeds_the_longest_wait(attempts: int, chance: float) -> None:
    patient = RetryPolicy(max_attempts=100, max_throttled_seconds=60.0)
    error = RequestError("timeout", "slow")
    seconds = patient.wait_seconds(error, attempts=attempts, throttled_seconds=0.0, chance=chance)
    assert seconds is not None
    assert 0 <= seconds <= LONGEST_BACKOFF_SECONDS


def test_a_request_error_truncates_the_message_of_the_server() -> None:
    assert len(RequestError("server_error", "x" * 10_000).message) == 2000


def test_a_request_error_has_the_billed_tokens() -> None:
    error = RequestError("blocked", "no", http_status=200, retry_after_seconds=1.5, tokens=Tokens(3, 4))
    assert (error.kind, error.message, error.http_status) == ("blocked", "no", 200)
    assert (error.retry_after_seconds, error.tokens.input, error.tokens.output) == (1.5, 3, 4)
    assert str(error) == "no"


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (RequestError("connection", "refused"), True),
        (RequestError("server_error", "no server", http_status=502), True),
        (RequestError("server_error", "overloaded", http_status=503), True),
        (RequestError("server_error", "broken", http_status=500), False),
        (RequestError("timeout", "slow"), False),
        (RequestError("throttled", "429", http_status=429), False),
    ],
)
def test_an_outage_is_a_failure_of_the_whole_server(error: RequestError, is_outage: bool) -> None:
    assert error.is_outage is is_outage


@pytest.mark.parametrize("kind", sorted(RETRIED))
@pytest.mark.parametrize(("advised", "seconds"), [(7.0, 7.0), (45.0, 45.0), (86_400.0, LONGEST_ADVISED_SECONDS)])
def test_the_wait_is_at_least_what_the_server_advises_for_every_kind(
    kind: FailureKind, advised: float, seconds: float
) -> None:
    error = RequestError(kind, "no", retry_after_seconds=advised)
    assert POLICY.wait_seconds(error, attempts=1, throttled_seconds=0.0, chance=0.9) == seconds


def test_advice_that_is_shorter_than_the_backoff_does_not_shorten_it() -> None:
    error = RequestError("server_error", "no", http_status=503, retry_after_seconds=0.1)
    assert POLICY.wait_seconds(error, attempts=3, throttled_seconds=0.0, chance=0.5) == 2.0


def test_the_wait_of_an_overload_of_a_thousand_attempts_is_finite() -> None:
    policy = RetryPolicy(max_attempts=2, max_throttled_seconds=1e9)
    overload = RequestError("server_error", "full", http_status=503)
    assert policy.wait_seconds(overload, attempts=5000, throttled_seconds=9.0, chance=1.0) is not None
