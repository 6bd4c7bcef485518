"""Who the sandbox answers: it runs code as the developer who started it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from google.auth import crypt, jwt
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import Request
from google.cloud import storage
from google.oauth2 import service_account
from llmbeam_sandbox import Proxy, Sandbox
from llmbeam_sandbox.network.credentials import write_service_account

from tests.clouds import authorized, for_one_test

MODEL = "/v1beta/models/gemini-2.5-flash:generateContent"
ASK = {"contents": [{"parts": [{"text": "hi"}]}]}
JOBS = "/v1b3/projects/p/locations/us-central1/jobs"
GUARDED = [
    ("POST", JOBS),
    ("GET", JOBS),
    ("POST", "/v1b3/projects/p/locations/us-central1/flexTemplates:launch"),
    ("POST", "/sandbox/dataflow/jobs/none/kill-harness"),
    ("POST", "/upload/storage/v1/b/rows/o?uploadType=media&name=pipeline.pb"),
    ("GET", "/storage/v1/b/rows/o"),
    ("DELETE", "/storage/v1/b/rows/o/a"),
    ("POST", "/batch/storage/v1"),
    ("POST", "/bigquery/v2/projects/p/jobs"),
    ("GET", "/v1/projects/p/secrets/key/versions/latest:access"),
    ("POST", "/v1/projects/p/locations/us-central1/endpoints"),
    ("GET", "/v2/projects/p/locations/us-central1/services"),
    ("POST", "/v1/projects/-/serviceAccounts/a@p.iam.gserviceaccount.com:generateAccessToken"),
    ("GET", "/flink/jobs/overview"),
    ("PATCH", "/flink/no-token/jobs/00000000000000000000000000000000?mode=cancel"),
    ("POST", "/sandbox/reset"),
    ("POST", "/sandbox/faults"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Sandbox, Proxy]]:
    with Sandbox(buckets=("rows",)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served: tuple[Sandbox, Proxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    yield from for_one_test(served, monkeypatch)


@pytest.mark.parametrize(("verb", "path"), GUARDED)
def test_whatever_runs_code_or_keeps_state_needs_the_token_of_this_start(
    sandbox: Sandbox, verb: str, path: str
) -> None:
    refused = httpx.request(verb, sandbox.url + path)
    assert (refused.status_code, refused.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert "LLMBEAM_SANDBOX_TOKEN" in refused.json()["error"]["message"]
    for wrong in (b"Bearer t", b"Bearer", b"Bearer \xff", b"Basic x", b"Basic c2FuZGJveDp0", b"Basic /w=="):
        headers = {"Authorization": wrong}
        assert httpx.request(verb, sandbox.url + path, headers=headers).status_code == 401
    assert httpx.request(verb, sandbox.url + path, headers=authorized(sandbox)).status_code != 401
    assert httpx.request(verb, sandbox.authorized_url + path).status_code != 401


def test_only_models_metrics_and_statistics_need_no_token(sandbox: Sandbox) -> None:
    free = {
        route.resource.canonical
        for route in sandbox._application().router.routes()
        if route.resource and "Access._guard" not in route.handler.__qualname__
    }
    models = {path for path in free if "odel" in path or "redict" in path or "/chat/completions" in path}
    assert free - models == {
        "/",
        "/sandbox/stats",
        "/sandbox/bill",
        "/token",  # needs a signature
        "/oauth2/v4/token",
        "/v1/projects/-/serviceAccounts/{account}/allowedLocations",
        "/v3/projects/{project}/timeSeries",
        "/v1/projects/{project}/locations/global/services/{service}/quotaInfos{tail}",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/batches{tail}",
        "/sandbox/token-bill",
        # Batches and files of callers with an API key: prompts in memory, and no code.
        "/v1/batches{tail}",
        "/v1/files{tail}",
        "/{version}/batches{tail}",
        "/{version}/files{tail}",
        "/upload/{version}/files",
        "/download/{version}/files/{tail}",
        # Cached contents, by key or as Vertex AI has them.
        "/{version}/cachedContents{tail}",
        "/{version}/projects/{project}/locations/{location}/cachedContents{tail}",
        "/{path}",  # Gemini
    }


def test_models_and_statistics_need_no_token(sandbox: Sandbox) -> None:
    assert httpx.post(sandbox.url + MODEL, json=ASK, headers={"x-goog-api-key": "k"}).status_code == 200
    assert httpx.get(f"{sandbox.url}/sandbox/stats").status_code == 200


def test_each_start_has_a_token_of_its_own() -> None:
    tokens = set()
    sandbox = Sandbox()
    for _ in range(2):
        with sandbox:
            tokens.add(sandbox.token)
    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 32


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}",
        "evil.example",
        "127.0.0.1.evil.example:{port}",
        "localhost.evil.example",
        "evilgoogleapis.com",
        "storage.googleapis.com.evil.example",
        "169.254.169.254",
        "[::2]:{port}",
        "0.0.0.0:{port}",
    ],
)
def test_a_host_that_is_not_this_machine_is_refused(sandbox: Sandbox, host: str) -> None:
    headers = {"Host": host.format(port=sandbox.port), "x-goog-api-key": "k", **authorized(sandbox)}
    for verb, path in [*GUARDED[:4], ("POST", MODEL), ("GET", "/"), ("GET", "/sandbox/stats")]:
        refused = httpx.request(verb, sandbox.url + path, headers=headers)
        assert refused.status_code == 403
        assert "answers for 127.0.0.1, localhost and" in refused.json()["error"]["message"]
    assert len(sandbox.requests) == 0


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "[::1]:{port}"])
def test_this_machine_may_be_called_by_each_of_its_names(sandbox: Sandbox, host: str) -> None:
    assert httpx.get(sandbox.url, headers={"Host": host.format(port=sandbox.port)}).text == "OK"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "file://", "evil"]
)
def test_a_request_of_a_web_page_is_refused(sandbox: Sandbox, origin: str) -> None:
    headers = {"Origin": origin, "x-goog-api-key": "k", **authorized(sandbox)}
    for verb, path in [*GUARDED[:4], ("POST", MODEL), ("OPTIONS", MODEL)]:
        refused = httpx.request(verb, sandbox.url + path, headers=headers)
        assert refused.status_code == 403
        assert f"the origin {origin!r} is not" in refused.json()["error"]["message"]
    assert len(sandbox.requests) == 0


def test_a_page_of_the_sandbox_itself_is_no_other_origin(sandbox: Sandbox) -> None:
    assert httpx.get(f"{sandbox.url}/sandbox/stats", headers={"Origin": sandbox.url}).status_code == 200


def test_a_client_without_credentials_uses_the_token_in_the_address(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", sandbox.authorized_url)
    with storage.Client(project="p", credentials=AnonymousCredentials()) as client:
        blob = client.bucket("rows").blob("a.txt", chunk_size=262_144)
        blob.upload_from_string(b"x" * 600_000)  # in three requests, to an address in the reply to the first
        (listed,) = client.list_blobs("rows")
        assert len(listed.download_as_bytes()) == 600_000


@pytest.mark.usefixtures("sandbox")
def test_a_caller_of_the_proxy_needs_its_credentials() -> None:
    url = "https://storage.googleapis.com/storage/v1/b/rows"
    assert requests.get(url, timeout=60).status_code == 401
    with storage.Client() as client:
        assert client.get_bucket("rows").name == "rows"


def credentials_of(file: Path) -> Any:
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    return service_account.Credentials.from_service_account_file(str(file), scopes=scopes)


def test_another_key_gets_no_token(sandbox: Sandbox, served: tuple[Sandbox, Proxy], tmp_path: Path) -> None:
    write_service_account(tmp_path / "key.json", "llmbeam-sandbox")
    with pytest.raises(RefreshError, match="Invalid JWT Signature"):
        credentials_of(tmp_path / "key.json").refresh(Request())
    own = credentials_of(served[1].directory / "credentials.json")
    own.refresh(Request())
    assert own.token == sandbox.token


def test_a_token_that_a_client_signs_itself_is_verified(
    sandbox: Sandbox, served: tuple[Sandbox, Proxy], tmp_path: Path
) -> None:
    write_service_account(tmp_path / "key.json", "llmbeam-sandbox")
    now = int(time.time())

    def status(file: Path, expires: int) -> int:
        signer = crypt.RSASigner.from_service_account_file(str(file))
        token = jwt.encode(signer, {"iat": now, "exp": expires, "aud": "https://storage.googleapis.com/"}).decode()
        url = f"{sandbox.url}/storage/v1/b/rows"
        return httpx.get(url, headers={"Authorization": f"Bearer {token}"}).status_code

    own = served[1].directory / "credentials.json"
    assert status(own, now + 60) == 200
    assert status(own, now - 60) == 401
    assert status(tmp_path / "key.json", now + 60) == 401


def test_grpc_needs_the_token_as_well(sandbox: Sandbox) -> None:
    grpc = pytest.importorskip("grpc")
    dataflow = pytest.importorskip("google.cloud.dataflow_v1beta3")
    with grpc.insecure_channel(f"127.0.0.1:{sandbox.start_grpc()}") as channel:
        call = channel.unary_unary(
            "/google.dataflow.v1beta3.JobsV1Beta3/CreateJob",
            request_serializer=dataflow.CreateJobRequest.serialize,
            response_deserializer=dataflow.Job.deserialize,
        )
        order = dataflow.CreateJobRequest(project_id="p", location="us-central1", job={"name": "j"})
        for metadata in ((), (("authorization", "Bearer t"),)):
            with pytest.raises(grpc.RpcError) as caught:
                call(order, metadata=metadata)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert sandbox.stats()["dataflow_jobs"] == {}
