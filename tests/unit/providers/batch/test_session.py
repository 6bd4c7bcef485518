"""The credentials of this process, and the models that have batch inference."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from google.auth import compute_engine
from google.oauth2.credentials import Credentials

from airflow_provider_llmbeam.exceptions import JobRefusedError, JobSpecError
from airflow_provider_llmbeam.providers.batch import open_provider
from airflow_provider_llmbeam.providers.errors import ApiConflictError, ApiDeniedError, ApiUnavailableError
from airflow_provider_llmbeam.providers.rest import RestClient, session_with
from airflow_provider_llmbeam.spec import EchoModel, GeminiModel, OpenAIModel
from airflow_provider_llmbeam.transport.google_auth import GoogleToken
from tests.replying import Replying, raw


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")


def server_of(url: str, kind: str) -> GeminiModel | OpenAIModel:
    if kind == "gemini":
        return GeminiModel(base_url=url)
    return OpenAIModel(type="openai", name="gpt-5-mini", base_url=f"{url}/v1")


@pytest.mark.parametrize(
    ("kind", "variable", "header", "value"),
    [
        ("gemini", "GOOGLE_API_KEY", "x-goog-api-key", "secret"),
        ("gemini", "GEMINI_API_KEY", "x-goog-api-key", "secret"),
        ("openai", "OPENAI_API_KEY", "Authorization", "Bearer secret"),
    ],
)
def test_the_key_of_the_environment_is_sent_and_netrc_does_not_replace_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, variable: str, header: str, value: str
) -> None:
    monkeypatch.setenv(variable, "secret")
    with Replying(lambda request: raw({})) as server:
        assert open_provider(server_of(server.url, kind), output_uri="").find("night-") == []
        (request,) = server.received
    assert request.headers[header] == value
    assert request.path == {"gemini": "/v1beta/batches?pageSize=100", "openai": "/v1/batches?limit=100"}[kind]


@pytest.mark.parametrize(
    ("model", "variable"),
    [(GeminiModel(), "GOOGLE_API_KEY"), (OpenAIModel(type="openai", name="gpt-5-mini"), "OPENAI_API_KEY")],
)
def test_a_missing_key_is_named(model: GeminiModel | OpenAIModel, variable: str) -> None:
    with pytest.raises(JobSpecError, match=rf"needs a key: found neither .* nor `{variable}`.*Nothing was sent"):
        open_provider(model, output_uri="")


def test_missing_google_credentials_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(JobSpecError, match=r"Vertex AI \(model .*\) needs Google credentials: .*Nothing was sent"):
        open_provider(GeminiModel(project="p"), output_uri="gs://b/out")


def test_a_submission_without_a_token_is_not_an_uncertain_one() -> None:
    with Replying(lambda request: raw({"error": "invalid_grant"}, 400)) as server:
        account = Credentials(None, "refresh", token_uri=server.url, client_id="x", client_secret="x")
        session = session_with(GoogleToken(account).headers)
        provider = open_provider(GeminiModel(project="p"), output_uri="gs://b/out", session=session)
        with pytest.raises(JobRefusedError, match=r"give no access token.*No job was created"):
            provider.submit("night-1", "gs://b/in.jsonl", lambda uri: io.BytesIO(b"x"), 1)
        with pytest.raises(ApiDeniedError, match="Vertex AI: the credentials give no access token"):
            provider.find("night-")


def test_a_metadata_server_without_an_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    waits: list[float] = []
    account = compute_engine.Credentials()  # type: ignore[no-untyped-call]
    with pytest.raises(ApiUnavailableError, match="no access token") as caught:
        RestClient(session_with(GoogleToken(account).headers), "Vertex AI", waits.append).get(
            "http://127.0.0.1:9/jobs"
        )
    assert waits
    assert not caught.value.was_processed


def test_a_model_without_batch_inference_is_refused() -> None:
    with pytest.raises(JobSpecError, match="Models of type 'echo' have no batch inference here"):
        open_provider(EchoModel(type="echo"), output_uri="")


@pytest.mark.parametrize(("uri", "output_uri"), [("/tmp/in.jsonl", "gs://b/out"), ("gs://b/in.jsonl", "/tmp/out")])
def test_vertex_ai_needs_files_on_cloud_storage(credentials: None, uri: str, output_uri: str) -> None:
    provider = open_provider(GeminiModel(project="p"), output_uri=output_uri)
    with pytest.raises(JobSpecError, match=r"on Cloud Storage; got '/tmp/.*Set `state_uri`"):
        provider.submit("night-1", uri, lambda uri: io.BytesIO(b"x"), 1)


def test_a_key_is_sent_to_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "secret")
    start = raw({}, X_Goog_Upload_URL="http://127.0.0.1:1/upload?upload_id=1")
    with Replying(lambda request: raw({"error": {}}, 400) if "upload_id" in request.path else start) as server:
        provider = open_provider(GeminiModel(base_url=server.url), output_uri="")
        with pytest.raises(JobRefusedError, match="HTTP 400"):
            provider.submit("night-1", "in.jsonl", lambda uri: io.BytesIO(b"{}"), 2)
        assert [request.path for request in server.received] == ["/upload/v1beta/files", "/upload?upload_id=1"]


def test_a_cancellation_that_is_refused_for_a_running_job_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    job = raw({"id": "batch_1", "status": "in_progress"})
    refusal = raw({"error": {"message": "Not now."}}, 409)
    with Replying(lambda request: refusal if request.path.endswith("/cancel") else job) as server:
        provider = open_provider(server_of(server.url, "openai"), output_uri="")
        with pytest.raises(ApiConflictError, match="409: Not now"):
            provider.cancel("batch_1")
