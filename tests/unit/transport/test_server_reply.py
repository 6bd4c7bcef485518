from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.transport.server_reply import (
    advised_wait_seconds,
    parse_json,
    read_error,
    redirect_refusal,
    stated_limits,
)
from tests.hostile import examples

letters = st.text(st.characters() | st.characters(categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | letters,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(letters, inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("error", "message", "type", "detail", "details", "code", "violations", "quotaId", "retryDelay", "@type")
bodies = st.recursive(
    values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=8,
)
RETRY_INFO = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "38.5s"}]
OTHER = [{"@type": "type.googleapis.com/google.rpc.Help", "links": []}]


@pytest.mark.fuzz
@examples(0.5)
@given(bodies)
def test_any_body_of_an_error_is_read(body):
    error = read_error(json.dumps(body))
    error.message.encode()
    assert isinstance(error.is_per_day, bool)
    assert error.code is None or isinstance(error.code, str)
    assert error.quota_unit in (None, "requests", "tokens")


@pytest.mark.parametrize(
    "violations", [None, 5, "PerDay", {"quotaId": "PerDay"}, [None, 5, "PerDay", {"quotaId": 5}]], ids=str
)
def test_violations_of_any_type_name_no_quota(violations):
    body = {"error": {"message": "no", "details": [{"violations": violations}]}}
    assert not read_error(json.dumps(body)).is_per_day


@pytest.mark.parametrize(
    ("error", "unit"),
    [
        ({"type": "tokens", "code": "rate_limit_exceeded", "message": "Limit reached."}, "tokens"),
        ({"type": "requests", "code": "rate_limit_exceeded"}, "requests"),
        ({"message": "This request would exceed your limit of 40,000 input tokens per minute."}, "tokens"),
        ({"message": "Limit reached for m on requests per min (RPM): Limit 3, Used 3, Requested 1."}, "requests"),
        ({"details": [{"violations": [{"quotaId": "GenerateContentInputTokensPerModelPerMinute"}]}]}, "tokens"),
        ({"details": [{"violations": [{"quotaId": "GenerateRequestsPerMinutePerProject"}]}]}, "requests"),
    ],
    ids=str,
)
def test_an_exhausted_quota_is_named_by_what_it_counts(error, unit):
    assert read_error(json.dumps({"error": error})).quota_unit == unit


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Resource exhausted. Please try again later."},
        {"message": "Your requests have too many tokens."},
        {"type": "rate_limit_error", "message": "busy"},
        {"type": ["tokens"]},
        {"details": [{"violations": [{"quotaId": "InputTokensPerMinute"}, {"quotaId": "RequestsPerMinute"}]}]},
    ],
    ids=str,
)
def test_a_429_that_names_no_quota_or_quotas_of_both_units_names_none(error):
    assert read_error(json.dumps({"error": error})).quota_unit is None


@pytest.mark.parametrize("message", [5, None, True, ["a"], {"a": 1}, "  "], ids=str)
def test_a_message_of_another_type_is_replaced_by_the_whole_body(message):
    text = json.dumps({"error": {"message": message}})
    assert read_error(text).message == text


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, "nul", "", b"\xff{", b"\xef\xbb\xbf"]
)
def test_a_text_that_is_no_json_has_no_value(text):
    assert parse_json(text) is None


def test_json_with_a_byte_order_mark_or_damaged_letters_is_read():
    assert parse_json(b'\xef\xbb\xbf{"a": "\xff"}') == {"a": "\ufffd"}


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("https://other.example/v1?key=secret", "https://other.example:443"),
        ("http://user:secret@other.example:8080/", "http://other.example:8080"),
        ("//other.example/secret", "https://other.example:443"),
        ("/v2/secret", "another path of the same server"),
        ("http://[::1]:80/secret", "http://[::1]:80"),
        ("http://[secret", "an invalid address"),
        ("http://h:secret/", "an invalid address"),
        ("http://\udcff\x1b[31m/", "an invalid address"),
        (f"http://{'a' * 300}/", "an invalid address"),
        ("", "no address"),
        (None, "no address"),
    ],
)
def test_a_redirect_is_refused_by_the_names_of_both_servers_alone(location, target):
    refusal = redirect_refusal("https://user:secret@model.example/v1?key=secret", location, 307)
    assert refusal.startswith(f"https://model.example:443 redirects to {target} (HTTP 307)")
    assert "secret" not in refusal


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
    headers = {} if header is None else {"Retry-After": header}
    assert advised_wait_seconds(headers, details, now) == seconds


@pytest.mark.parametrize("header", ["nan", "inf", "-inf", "1e400", "NaN", "9" * 5000])
def test_advice_that_is_no_finite_number_is_no_advice(header):
    assert advised_wait_seconds({"Retry-After": header}, []) is None


def test_advice_of_more_than_a_day_is_a_day():
    assert advised_wait_seconds({"Retry-After": "1e9"}, []) == 86_400
    assert advised_wait_seconds({"Retry-After": "Sun, 09 Sep 2040 01:47:10 GMT"}, [], 1e9) == 86_400


@pytest.mark.parametrize("delay", [None, True, [], {}, ["5s"], "nans", 10**400], ids=lambda delay: str(delay)[:9])
def test_a_retry_delay_of_another_type_is_no_advice(delay):
    assert advised_wait_seconds({}, [{"@type": "RetryInfo", "retryDelay": delay}]) is None
    assert advised_wait_seconds({}, [{"@type": [delay], "retryDelay": "5s"}]) is None


@pytest.mark.fuzz
@examples(0.3)
@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d{1,12} [A-Z][a-z]{2} \d{1,12} \d+:\d+:\d+ ([+-]\d+|GMT)?"))
def test_any_header_is_read(header):
    seconds = advised_wait_seconds({"Retry-After": header, "retry-after-ms": header}, [], 1e9)
    assert seconds is None or (math.isfinite(seconds) and 0 <= seconds <= 86_400)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "1500", "Retry-After": "2"}, 1.5),
        ({"Retry-After-Ms": "1500"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2.0),
        ({"retry-after-ms": "soon"}, 38.5),
        ({"retry-after-ms": "-1"}, 0.0),
    ],
)
def test_milliseconds_precede_the_rounded_seconds_and_both_the_body(headers, seconds):
    assert advised_wait_seconds(headers, RETRY_INFO) == seconds


def of_openai(limit, left, reset):
    return {"X-RateLimit-Limit-Requests": limit, "x-ratelimit-remaining-requests": left} | (
        {"x-ratelimit-reset-requests": reset} if reset else {}
    )


@pytest.mark.parametrize(
    ("headers", "limits"),
    [
        (of_openai("5000", "4999", "12ms"), {"requests": [5000, 1]}),
        (of_openai("60", "0", "1m0s"), {"requests": [60, 60]}),
        (of_openai("5000", "5000", "0s"), {"requests": [5000, 0]}),
        (of_openai("10000", "9999", "8.64s"), {}),
        (of_openai("10000", "5000", "12h0m0s"), {}),
        (of_openai("-1", "-1", "0"), {}),
        (of_openai("5000", "", None), {}),
        (
            {
                "anthropic-ratelimit-input-tokens-limit": "80000",
                "anthropic-ratelimit-input-tokens-remaining": "79000",
                "anthropic-ratelimit-input-tokens-reset": "2026-11-21T12:40:59Z",
            },
            {"input_tokens": [80_000, 1000]},
        ),
    ],
)
def test_the_limits_per_minute_that_a_reply_states_are_read_and_no_others(headers, limits):
    assert stated_limits(headers) == limits
