from __future__ import annotations

import pytest
from google.auth.compute_engine import Credentials
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.auth.transport.requests import Request
from google.oauth2.credentials import Credentials as UserCredentials

from airflow_provider_llmbeam.transport.google_auth import is_transient_token_error
from tests.replying import Replying, raw


@pytest.mark.parametrize(
    ("status", "again"), [(408, True), (429, True), (500, True), (503, True), (404, False), (403, False)]
)
def test_a_machine_may_get_a_token_later_unless_its_metadata_server_refuses_it(monkeypatch, status, again):
    with Replying(lambda _: raw("no", status, Metadata_Flavor="Google", Content_Type="text/plain")) as server:
        place = server.url.removeprefix("http://")
        monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", place)
        monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
        with pytest.raises(RefreshError) as caught:
            Credentials().refresh(Request())
    assert is_transient_token_error(caught.value) is again


@pytest.mark.parametrize(("status", "again"), [(503, True), (400, False)])
def test_an_account_may_get_a_token_later_after_an_error_of_the_token_service_alone(monkeypatch, status, again):
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    with Replying(lambda _: raw({"error": "no"}, status)) as server:
        account = UserCredentials(None, "refresh", token_uri=server.url, client_id="x", client_secret="x")
        with pytest.raises(RefreshError) as caught:
            account.refresh(Request())
    assert is_transient_token_error(caught.value) is again


def test_a_token_service_that_is_not_reached_may_give_a_token_later():
    assert is_transient_token_error(TransportError("no route"))
    assert not is_transient_token_error(GoogleAuthError("no such account"))
