from __future__ import annotations

import pytest

from airflow_provider_llmbeam.retry_info import retry_after_seconds

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
