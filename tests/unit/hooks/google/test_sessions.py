from __future__ import annotations

import copy
import threading

import pytest
from requests import Session
from requests.exceptions import SSLError

from airflow_provider_llmbeam.hooks.google.base import GoogleHook
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest
from airflow_provider_llmbeam.hooks.google.rest import GoogleRest
from airflow_provider_llmbeam.hooks.google.sessions import with_shared_connections

URL = "https://monitoring.googleapis.com/v3/projects/llmbeam-sandbox/timeSeries"


@pytest.fixture
def opened(google, monkeypatch):
    """The hosts to which connections were opened, in order."""
    opened = []
    forward = google._forward

    async def counted(reader, writer):
        opened.append(writer)
        await forward(reader, writer)

    monkeypatch.setattr(google, "_forward", counted)
    return opened


def end_lookups():
    """Waits for the threads that look up where an account may be used: two at a time need two connections."""
    for thread in threading.enumerate():
        if type(thread).__module__.startswith("google.auth"):
            thread.join()


def test_sessions_that_follow_each_other_share_one_connection(opened):
    for _ in range(3):
        with with_shared_connections(Session()) as session:
            assert session.get(URL).status_code in (400, 401)
    assert len(opened) == 1


def test_many_hooks_open_one_connection_to_each_host(opened):
    request = CloudRequest(action="list", project="p", service="monitoring", role="r", missing="m")
    params = {
        "filter": 'metric.type = "aiplatform.googleapis.com/publisher/online_serving/token_count"',
        "interval.startTime": "2026-01-01T00:00:00Z",
        "interval.endTime": "2026-01-01T00:10:00Z",
    }
    for _ in range(3):
        assert GoogleRest(GoogleHook()).get(URL, params, request) is not None
        end_lookups()
    assert len(opened) <= 3, "tokens, metrics, and where an account may be used"


def test_a_copy_of_a_session_has_the_same_connections(opened):
    session = with_shared_connections(Session())
    for each in (session, copy.deepcopy(session)):
        each.get(URL)
    assert len(opened) == 1


def test_an_authority_that_is_not_trusted_is_refused_on_shared_connections_too(opened, monkeypatch):
    with_shared_connections(Session()).get(URL)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    monkeypatch.delenv("CURL_CA_BUNDLE")
    with pytest.raises(SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        with_shared_connections(Session()).get(URL)
