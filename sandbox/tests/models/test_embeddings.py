from __future__ import annotations

import math
from typing import Any

import httpx
import openai
import pytest
from google import genai
from google.genai import errors, types
from google.oauth2.credentials import Credentials
from llmbeam_sandbox import Fault, ManualClock, ModelSettings, Quota, Sandbox, prompt_sha256
from llmbeam_sandbox.models.embedding.base import vector

PATH = "/v1/embeddings"
BATCH = "/v1beta/models/gemini-embedding-001:batchEmbedContents"
PUBLISHER = "/v1/projects/p/locations/l/publishers/google/models"


def batch(*texts: str, **more: Any) -> dict[str, Any]:
    common = {"model": "models/gemini-embedding-001", **more}
    return {"requests": [{**common, "content": {"parts": [{"text": text}]}} for text in texts]}


def test_equal_texts_have_equal_vectors_of_length_one() -> None:
    first = vector("a", model="m")
    assert first == vector("a", model="m")
    assert first != vector("b", model="m")
    assert first != vector("a", model="n")
    assert len(first) == 768
    assert math.hypot(*first) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("model", "dimensions"), [("gemini-embedding-001", 3072), ("text-embedding-3-small", 1536)]
)
def test_each_model_has_its_default_dimensions(model: str, dimensions: int) -> None:
    assert len(vector("a", model=model)) == dimensions


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_the_openai_client_gets_vectors(sandbox: Sandbox, encoding: Any) -> None:
    with openai.OpenAI(base_url=sandbox.openai_url, api_key="any", max_retries=0) as client:
        found = client.embeddings.create(
            model="text-embedding-3-small", input=["Hi", "there"], dimensions=4, encoding_format=encoding
        )
    if encoding == "float":
        for text, item in zip(["Hi", "there"], found.data, strict=True):
            assert item.embedding == vector(text, model="text-embedding-3-small", dimensions=4)
    assert [item.index for item in found.data] == [0, 1]
    assert (found.usage.prompt_tokens, found.usage.total_tokens) == (3, 3)
    assert sandbox.requests.paid("openai.embeddings") == {prompt_sha256("Hi"): 1, prompt_sha256("there"): 1}


def test_the_openai_client_requests_base64_by_default(sandbox: Sandbox) -> None:
    with openai.OpenAI(base_url=sandbox.openai_url, api_key="any", max_retries=0) as client:
        found = client.embeddings.create(model="m", input="Hi", dimensions=4)
    assert found.data[0].embedding == pytest.approx(vector("Hi", model="m", dimensions=4), abs=1e-7)


def test_google_genai_gets_vectors(sandbox: Sandbox) -> None:
    options = types.HttpOptions(base_url=sandbox.gemini_url)
    with genai.Client(api_key="k", http_options=options) as client:
        found = client.models.embed_content(
            model="gemini-embedding-001",
            contents=["Hi", "there"],
            config=types.EmbedContentConfig(output_dimensionality=4, task_type="CLUSTERING"),
        )
    assert [item.values for item in found.embeddings or []] == [
        vector(text, model="gemini-embedding-001", dimensions=4) for text in ("Hi", "there")
    ]
    assert sandbox.requests.paid("gemini.batchEmbedContents").total() == 2


@pytest.mark.parametrize(
    ("model", "method"), [("text-embedding-005", "gemini.predict"), ("gemini-embedding-2", "gemini.embedContent")]
)
def test_google_genai_gets_vectors_of_vertex_ai(sandbox: Sandbox, model: str, method: Any) -> None:
    options = types.HttpOptions(base_url=sandbox.gemini_url)
    place: dict[str, Any] = {
        "vertexai": True,
        "project": "p",
        "location": "l",
        "credentials": Credentials(token="t"),
    }
    with genai.Client(**place, http_options=options) as client:
        found = client.models.embed_content(model=model, contents="Hi")
        (item,) = found.embeddings or []
        assert item.values == vector("Hi", model=model)
        assert item.statistics is not None
        assert item.statistics.token_count == 1
        with pytest.raises(errors.ClientError, match="was not found"):
            client.models.embed_content(model="text-bison", contents="Hi")
    assert sandbox.requests.paid(method).total() == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": "m"}, "'$.input' is invalid"),
        ({"model": "m", "input": []}, "'$.input' is invalid"),
        ({"model": "m", "input": ["a", ""]}, "'$.input' is invalid"),
        ({"model": "m", "input": [1, 2]}, "'$.input' is invalid"),
        ({"model": "m", "input": ["a"] * 2049}, "'$.input' is invalid"),
        ({"model": "m", "input": "a", "dimensions": 0}, "less than the minimum"),
        ({"model": "m", "input": "a", "dimensions": "many"}, "could not parse"),
        ({"input": "a"}, "model parameter"),
        ({"model": "m", "input": "x" * 4 * 8193}, "maximum context length is 8192 tokens"),
        ({"model": "m", "input": ["x" * 4 * 8000] * 38}, "max 300000 tokens per request"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_requests_that_the_openai_api_refuses_are_not_billed(
    http: httpx.Client, sandbox: Sandbox, body: dict[str, Any], message: str
) -> None:
    response = http.post(PATH, json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert sandbox.stats()["billed_answers"] == 0


def test_embeddings_require_the_key_too() -> None:
    with Sandbox(models=ModelSettings(openai_api_key="secret")) as closed:
        assert httpx.post(closed.openai_url + "/embeddings", json={"model": "m", "input": "a"}).status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (BATCH, batch(*["a"] * 101), "at most 100 requests can be in one batch"),
        (BATCH, batch("a", ""), "empty"),
        (BATCH, batch("a", model="models/other"), "model"),
        (BATCH, {"requests": []}, "Invalid JSON payload"),
        (f"{PUBLISHER}/text-embedding-005:predict", {"instances": [{"content": "a"}] * 251}, "Actual: 251"),
        (f"{PUBLISHER}/gemini-embedding-001:predict", {"instances": [{"content": "a"}] * 2}, "1 instance(s)"),
        (
            f"{PUBLISHER}/text-embedding-005:predict",
            {"instances": [{"content": "x" * 8000}] * 11},
            "only supports up to 20000",
        ),
        (f"{PUBLISHER}/gemini-embedding-2:embedContent", {}, "Invalid JSON payload"),
    ],
)
def test_requests_that_google_refuses_are_not_billed(
    http: httpx.Client, sandbox: Sandbox, path: str, body: dict[str, Any], message: str
) -> None:
    response = http.post(path, json=body, headers={"Authorization": "Bearer t"})
    assert (response.status_code, response.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert message in response.json()["error"]["message"]
    assert sandbox.stats()["billed_answers"] == 0


def test_google_paths_require_a_key_or_a_token(sandbox: Sandbox) -> None:
    assert httpx.post(sandbox.url + BATCH, json=batch("a")).status_code == 403
    path = f"{PUBLISHER}/text-embedding-005:predict"
    assert httpx.post(sandbox.url + path, json={"instances": [{"content": "a"}]}).status_code == 401


def test_a_used_up_quota_rejects_a_request_of_many_texts_as_a_whole(clock: ManualClock) -> None:
    with Sandbox(models=ModelSettings(quota=Quota(tokens_per_minute=600)), clock=clock) as limited:
        body = {"model": "m", "input": ["x" * 40, "y" * 40]}
        statuses = [httpx.post(limited.openai_url + "/embeddings", json=body).status_code for _ in range(2)]
        assert statuses == [200, 429]
        assert limited.stats()["input_tokens"] == 20


def test_a_fault_applies_to_the_request_that_contains_the_text(http: httpx.Client, sandbox: Sandbox) -> None:
    sandbox.faults.when("openai.embeddings", "bad", Fault(kind="error", http_status=400), times=1)
    bodies = [{"model": "m", "input": texts, "dimensions": 2} for texts in (["a"], ["a", "bad"], ["bad"])]
    assert [http.post(PATH, json=body).status_code for body in bodies] == [200, 400, 200]


def test_embeddings_cannot_have_a_stream_fault(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="A 'stream-error' needs one of"):
        sandbox.faults.queue("openai.embeddings", Fault(kind="stream-error"))
