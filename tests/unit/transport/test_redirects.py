from __future__ import annotations

import pytest
import requests
from google.auth.exceptions import TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from google.oauth2.credentials import Credentials

from airflow_provider_llmbeam.transport.redirects import (
    RedirectRefusedError,
    direct,
    redirect_behind,
    without_redirects,
)
from tests.replying import Replying, raw

STATUSES = (301, 302, 303, 307, 308)


@pytest.fixture
def other():
    with Replying(lambda _: raw({})) as running:
        yield running


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_redirect_is_refused_and_names_both_servers(other, status, method):
    with Replying(lambda _: raw("", status, Location=f"{other.url}/v1?token=t")) as server:
        session = without_redirects(requests.Session())
        with session, pytest.raises(RedirectRefusedError) as caught:
            session.request(method, server.url, data="data", headers={"x-goog-api-key": "secret"})
    assert str(caught.value).startswith(f"{server.url} redirects to {other.url} (HTTP {status})")
    assert other.received == []


def test_a_session_with_credentials_refuses_redirects_too(other):
    with Replying(lambda _: raw("", 307, Location=other.url)) as server:
        session = without_redirects(AuthorizedSession(Credentials(token="t")))
        with session, pytest.raises(RedirectRefusedError):
            session.get(server.url)
    assert len(server.received) == 1
    assert other.received == []


def test_a_token_request_is_not_sent_on(other):
    """A 307 would send the refresh token to the other server."""
    with Replying(lambda _: raw("", 307, Location=other.url)) as server:
        credentials = Credentials(None, refresh_token="r", token_uri=server.url, client_id="c", client_secret="s")
        with pytest.raises(TransportError) as caught:
            credentials.refresh(Request(without_redirects(requests.Session())))
    assert str(redirect_behind(caught.value)).startswith(f"{server.url} redirects to {other.url}")
    assert other.received == []


def test_the_body_of_a_redirect_is_not_read(other):
    def endless(_):
        yield f"HTTP/1.1 302 Any\r\nLocation: {other.url}\r\n\r\n".encode()
        while server.sent_bytes < 2**26:
            yield bytes(2**16)

    session = without_redirects(requests.Session())
    with Replying(endless) as server, session, pytest.raises(RedirectRefusedError):
        session.post(server.url, stream=True, allow_redirects=False)
    assert server.sent_bytes < 2**25, "only what the buffers of the connection hold"


def storage_client(address):
    from google.cloud.storage import Client

    client = direct(Client("p", Credentials("t0ken"), client_options={"api_endpoint": address}))
    return lambda: client.bucket("b").blob("o").upload_from_string("data")


def bigquery_client(address):
    from google.cloud.bigquery import Client

    client = direct(Client("p", Credentials("t0ken"), client_options={"api_endpoint": address}))
    return lambda: client.query("SELECT 1")


def secrets_client(address):
    from google.cloud.secretmanager import SecretManagerServiceClient

    options = {"api_endpoint": address}
    client = direct(
        SecretManagerServiceClient(credentials=Credentials("t0ken"), transport="rest", client_options=options)
    )
    return lambda: client.access_secret_version(name="projects/p/secrets/s/versions/1")


def beam_filesystem(address):
    from airflow_provider_llmbeam.pipeline import storage

    return lambda: storage.exists("gs://b/o")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("connect", [storage_client, bigquery_client, secrets_client, beam_filesystem])
def test_a_client_of_google_sends_its_token_and_its_data_to_no_other_server(connect, status, monkeypatch):
    with Replying(lambda _: raw({})) as other:
        answer = raw("", status, Location=f"{other.url}/")
        with Replying(lambda _: answer) as service:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", service.url)
            # else Beam looks for credentials five times, for 20 s
            monkeypatch.setattr("apache_beam.internal.gcp.auth._Credentials._credentials_init", True)
            send = connect(service.url)
            with pytest.raises(RedirectRefusedError, match=f"{service.url} redirects to {other.url}"):
                send()
        assert len(service.received) == 1, "a retry would be redirected, too"
        assert other.received == []
