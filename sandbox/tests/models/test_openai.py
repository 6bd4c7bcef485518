from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import httpx
import jsonschema
import openai
import pytest
from llmbeam_sandbox import Fault, ManualClock, ModelSettings, Quota, Sandbox, prompt_sha256
from llmbeam_sandbox.core.faults import FaultKind

PATH = "/v1/chat/completions"
MODEL = "google/gemma-3-1b-it"


def chat(prompt: str = "How tall is the tower?", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": prompt}], **more}


def events(text: str) -> list[Any]:
    payloads = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert payloads[-1] == "[DONE]"
    return [json.loads(payload) for payload in payloads[:-1]]


def test_the_openai_client_gets_an_answer(sandbox: Sandbox) -> None:
    with openai.OpenAI(base_url=sandbox.openai_url, api_key="any", max_retries=0) as client:
        completion = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        )
        assert next(model.id for model in client.models.list()) == MODEL
    assert completion.choices[0].finish_reason == "stop"
    assert (completion.choices[0].message.content or "").startswith("Hi [")
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 3 + 1
    assert sandbox.requests[0].prompt_sha256 == prompt_sha256("Hi", "Be brief.")


def test_text_parts_are_joined(http: httpx.Client, sandbox: Sandbox) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    http.post(PATH, json={"model": MODEL, "messages": [{"role": "user", "content": parts}]})
    assert sandbox.requests[0].prompt_sha256 == prompt_sha256("a\nb")


def test_a_schema_is_satisfied(http: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {
            "label": {"enum": ["good", "bad"]},
            "score": {"type": "integer", "minimum": 1, "maximum": 5},
        },
        "required": ["label", "score"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "review", "schema": schema}}
    for number in range(10):
        body = http.post(PATH, json=chat(f"row {number}", response_format=response_format)).json()
        jsonschema.validate(json.loads(body["choices"][0]["message"]["content"]), schema)


def test_json_without_a_schema_gives_an_object(http: httpx.Client) -> None:
    body = http.post(PATH, json=chat(response_format={"type": "json_object"})).json()
    assert "answer" in json.loads(body["choices"][0]["message"]["content"])


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_over_the_limit_is_cut(http: httpx.Client, name: str) -> None:
    body = http.post(PATH, json={**chat(), name: 2}).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


def test_a_stream_joins_to_the_whole_answer(http: httpx.Client) -> None:
    whole = http.post(PATH, json=chat()).json()["choices"][0]["message"]["content"]
    parts = events(http.post(PATH, json=chat(stream=True)).text)
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == whole
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in parts[-1]


def test_a_stream_reports_usage_on_request(http: httpx.Client) -> None:
    parts = events(http.post(PATH, json=chat(stream=True, stream_options={"include_usage": True})).text)
    assert parts[0]["usage"] is None
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["prompt_tokens"] == 6


def test_a_key_is_required_only_if_one_is_set() -> None:
    with Sandbox(models=ModelSettings(openai_api_key="secret")) as closed:
        url = closed.openai_url + "/models"
        refused = httpx.get(url, headers={"Authorization": "Bearer wrong"})
        admitted = httpx.get(url, headers={"Authorization": "Bearer secret"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    assert admitted.status_code == 200


def test_a_prompt_over_the_context_length_is_refused() -> None:
    with Sandbox(models=ModelSettings(input_token_limit=5)) as small:
        response = httpx.post(small.openai_url + "/chat/completions", json=chat())
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("This model's maximum context length is 5 tokens.")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "could not parse"),
        (b'{"messages": [{"role": "user", "content": "hi"}]}', "model parameter"),
        (b'{"model": "m", "messages": []}', "too short"),
        (b'{"model": "m", "messages": ["hi"]}', "could not parse"),
        (b'{"model": "m", "messages": [{"content": "hi"}], "max_tokens": 0}', "below minimum"),
        (
            b'{"model": "m", "messages": [{"content": "hi"}], "response_format": {"type": "json_schema"}}',
            "parse",
        ),
    ],
)
def test_a_malformed_request_is_refused(http: httpx.Client, body: bytes, message: str) -> None:
    response = http.post(PATH, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert message in response.json()["error"]["message"]


def test_a_rate_limit_fault_has_a_retry_after_header(sandbox: Sandbox, http: httpx.Client) -> None:
    sandbox.faults.queue("openai.chatCompletions", Fault(kind="rate-limit", retry_delay_seconds=1.5))
    response = http.post(PATH, json=chat())
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    assert response.headers["retry-after-ms"] == "1500"
    assert response.json()["error"]["code"] == "rate_limit_exceeded"


def test_a_used_up_quota_names_the_limit(clock: ManualClock) -> None:
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=10)), clock=clock) as limited:
        responses = [httpx.post(limited.openai_url + "/chat/completions", json=chat()) for _ in range(2)]
    assert [response.status_code for response in responses] == [200, 429]
    assert "requests per min (RPM)" in responses[1].json()["error"]["message"]
    assert responses[1].headers["retry-after"] == "6"


@pytest.mark.parametrize("kind", ["error", "stream-error"])
def test_an_error_fault_is_an_openai_error(sandbox: Sandbox, http: httpx.Client, kind: FaultKind) -> None:
    sandbox.faults.queue("openai.chatCompletions", Fault(kind=kind, http_status=503))
    response = http.post(PATH, json=chat())
    assert response.status_code == 503
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_stream_breaks_after_the_first_chunk(sandbox: Sandbox, http: httpx.Client) -> None:
    sandbox.faults.queue("openai.chatCompletions", Fault(kind="stream-error"))
    lines = [line for line in http.post(PATH, json=chat(stream=True)).text.splitlines() if line]
    assert [next(iter(json.loads(line.removeprefix("data: ")))) for line in lines] == ["object", "error"]


def test_a_dropped_body_is_billed(sandbox: Sandbox) -> None:
    sandbox.faults.queue("openai.chatCompletions", Fault(kind="drop"))

    async def go() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(sandbox.openai_url + "/chat/completions", json=chat()) as response,
        ):
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.json()

    asyncio.run(go())
    assert sandbox.requests.paid("openai.chatCompletions").total() == 1


def test_the_list_of_models_gets_faults(sandbox: Sandbox, http: httpx.Client) -> None:
    sandbox.faults.queue("openai.models", Fault(kind="error", http_status=500))
    assert [http.get("/v1/models").status_code for _ in range(2)] == [500, 200]
    sandbox.faults.assert_all_consumed()


def test_a_fifth_stop_sequence_is_refused(http: httpx.Client) -> None:
    refused = http.post("/v1/chat/completions", json=chat(stop=["a"] * 5))
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "array_above_max_length")
    assert http.post("/v1/chat/completions", json=chat(stop=["a"] * 4)).status_code == 200
