from __future__ import annotations

import pytest
from google.oauth2.credentials import Credentials

from airflow_provider_llmbeam.exceptions import RequestRefusedError
from airflow_provider_llmbeam.hooks.google.authentication import token_request
from airflow_provider_llmbeam.hooks.google.base import RegionalHook
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest, translate_errors
from airflow_provider_llmbeam.hooks.google.rest import GoogleRest
from airflow_provider_llmbeam.transport.google_auth import GoogleToken
from airflow_provider_llmbeam.transport.redirects import RedirectRefusedError
from tests.replying import Replying, raw

REQUEST = CloudRequest(action="list the metrics", project="p", service="monitoring", role="r")


class Hook:
    gcp_conn_id = "google_cloud_default"

    def get_credentials(self):
        return Credentials(token="t")


@pytest.fixture
def other():
    with Replying(lambda _: raw({})) as running:
        yield running


def test_a_redirect_of_a_google_service_is_refused_once_and_names_both_servers(other):
    answer = raw("", 302, Location=f"{other.url}/?key=secret")
    with Replying(lambda _: answer) as service, pytest.raises(RequestRefusedError) as caught:
        GoogleRest(Hook()).get(service.url, {}, REQUEST)
    assert f"{service.url} redirects to {other.url} (HTTP 302)" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(service.received) == 1, "a retry would be redirected, too"
    assert other.received == []


def test_a_refresh_token_is_not_sent_on(other):
    with Replying(lambda _: raw("", 307, Location=other.url)) as service:
        credentials = Credentials(None, refresh_token="r", token_uri=service.url, client_id="c", client_secret="s")
        refused = pytest.raises(RequestRefusedError, match=f"{service.url} redirects to {other.url}")
        with refused, translate_errors(REQUEST):
            GoogleToken(credentials, token_request()).headers()
    assert other.received == []


def test_a_client_of_a_regional_hook_sends_its_requests_to_no_other_server(other, monkeypatch):
    """Vertex AI would send on the body of an upload with the token of Hugging Face."""
    from google.cloud.dataflow_v1beta3 import GetJobRequest, JobsV1Beta3Client

    hook = RegionalHook.__new__(RegionalHook)
    hook._clients, hook.gcp_conn_id = {}, "google_cloud_default"
    monkeypatch.setattr(hook, "get_credentials", lambda: Credentials(token="t"), raising=False)
    with Replying(lambda _: raw("", 307, Location=other.url)) as service:
        monkeypatch.setattr(hook, "get_client_options", lambda: {"api_endpoint": service.url}, raising=False)
        client = hook._rest_client(JobsV1Beta3Client)
        refused = pytest.raises(RedirectRefusedError, match=f"{service.url} redirects to {other.url}")
        with refused:
            client.get_job(GetJobRequest(project_id="p", location="europe-west1", job_id="j"))
    assert other.received == []
