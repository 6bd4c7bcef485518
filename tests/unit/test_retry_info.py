from __future__ import annotations

import math

import pytest
from google.auth.compute_engine import Credentials
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials as UserCredentials
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.retry_info import may_give_token, retry_after_seconds
from tests.hostile import examples
from tests.replying import Replying, raw

RETRY_INFO = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "38.5s"}]
OTHER = [{"@type": "type.googleapis.com/google.rpc.Help", "links": []}]


@pytest.mark.parametrize(
    ("header", "details", "now", "seconds"),
    [
        (None, [], None, None),
        ("7", [], None, 7.0),
        ("7", RETRY_INFO, None, 7.0),
        ("-1", [], None, 0.0),
        (None, RETRY_INFO, None, 38.5),
        (None, [*OTHER, *RETRY_INFO], None, 38.5),
        ("soon", RETRY_INFO, 1e9, 38.5),
        ("Sun, 09 Sep 2001 01:47:10 GMT", [], 1e9, 30.0),
        ("Sun, 09 Sep 2001 01:47:10", [], 1e9, 30.0),
        ("Sun, 09 Sep 2001 01:47:10 GMT", RETRY_INFO, None, 38.5),
    ],
)
def test_the_header_precedes_the_body_and_a_date_needs_the_time(header, details, now, seconds):
    assert retry_after_seconds(header, details, now) == seconds


@pytest.mark.parametrize("header", ["nan", "inf", "-inf", "1e400", "NaN", "9" * 5000])
def test_advice_that_is_no_finite_number_is_no_advice(header):
    assert retry_after_seconds(header, []) is None


def test_advice_of_more_than_a_day_is_a_day():
    assert retry_after_seconds("1e9", []) == 86_400
    assert retry_after_seconds("Sun, 09 Sep 2040 01:47:10 GMT", [], 1e9) == 86_400


@pytest.mark.parametrize("delay", [None, True, [], {}, ["5s"], "nans", 10**400], ids=lambda delay: str(delay)[:9])
def test_a_retry_delay_of_another_type_is_no_advice(delay):
    assert retry_after_seconds(None, [{"@type": "RetryInfo", "retryDelay": delay}]) is None
    assert retry_after_seconds(None, [{"@type": [delay], "retryDelay": "5s"}]) is None


@pytest.mark.fuzz
@examples(0.3)
@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d{1,12} [A-Z][a-z]{2} \d{1,12} \d+:\d+:\d+ ([+-]\d+|GMT)?"))
def test_any_header_is_read(header):
    seconds = retry_after_seconds(header, [], 1e9)
    assert seconds is None or (math.isfinite(seconds) and 0 <= seconds <= 86_400)


@pytest.mark.parametrize(("status", "again"), [(503, True), (404, False), (403, False)])
def test_a_machine_may_get_a_token_later_unless_its_metadata_server_refuses_it(monkeypatch, status, again):
    with Replying(lambda _: raw("no", status, Metadata_Flavor="Google", Content_Type="text/plain")) as server:
        place = server.url.removeprefix("http://")
        monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", place)
        monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
        with pytest.raises(RefreshError) as caught:
            Credentials().refresh(Request())
    assert may_give_token(caught.value) is again


@pytest.mark.parametrize(("status", "again"), [(503, True), (400, False)])
def test_an_account_may_get_a_token_later_after_an_error_of_the_token_service_alone(monkeypatch, status, again):
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    with Replying(lambda _: raw({"error": "no"}, status)) as server:
        account = UserCredentials(None, "refresh", token_uri=server.url, client_id="x", client_secret="x")
        with pytest.raises(RefreshError) as caught:
            account.refresh(Request())
    assert may_give_token(caught.value) is again


def test_a_token_service_that_is_not_reached_may_give_a_token_later():
    assert may_give_token(TransportError("no route"))
    assert not may_give_token(GoogleAuthError("no such account"))
