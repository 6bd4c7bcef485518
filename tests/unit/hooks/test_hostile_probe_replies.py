"""Whatever a server replies to a probe, the outcome is known and its message is one line that can be shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.hooks.probe import read_reply
from tests.hostile import altered, encoded, letters

ANSWER: Any = {"candidates": [{"content": {"parts": [{"text": "Hi."}]}, "finishReason": "STOP"}]}
CHAT: Any = {"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}
REJECTED: Any = {
    "error": {
        "code": 429,
        "message": "Quota exceeded: requests per day (RPD)",
        "details": [
            {"@type": "x/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerDay"}]},
            {"@type": "x/google.rpc.RetryInfo", "retryDelay": "38.5s"},
        ],
    }
}
headers = st.dictionaries(
    st.sampled_from(["Retry-After", "retry-after", "Content-Type"]),
    st.sampled_from(["nan", "inf", "-1", "1e999", "9" * 500, "Fri, 99 Nov 20261 09:00:00 GMT", "5"]) | letters,
)


@pytest.mark.fuzz
@given(
    st.integers(100, 599) | st.sampled_from([200, 400, 404, 429, 503]),
    headers,
    altered(ANSWER, CHAT, REJECTED),
    st.none() | letters,
)
def test_any_reply_to_a_probe_has_an_outcome(
    http_status: int, headers: dict[str, str], body: Any, other: str | None
) -> None:
    text = encoded(body).decode() if other is None else other
    fields = frozenset({"candidates", "choices"})
    reply = read_reply(http_status, headers, text, answer_fields=fields, seconds=0.1, now=1e9)
    assert reply.http_status == http_status
    assert (reply.outcome == "answered") <= (http_status < 500)
    reply.message.encode()
    assert len(reply.message) < 400
    assert "\n" not in reply.message
    delay = reply.retry_after_seconds
    assert delay is None or (math.isfinite(delay) and 0 <= delay <= 86_400)
