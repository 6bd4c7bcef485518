from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import aiohttp
import httpx
import jsonschema
import pydantic
import pytest
from google import genai
from google.genai import errors, types
from google.oauth2.credentials import Credentials
from llmbeam_sandbox import (
    Fault,
    FixedWindow,
    ManualClock,
    ModelSettings,
    Quota,
    Sandbox,
    prompt_sha256,
)
from llmbeam_sandbox.core.faults import FaultKind

# google-genai 2.34 subclasses aiohttp.ClientSession on its first asynchronous call.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")

MODEL = "gemini-2.5-flash"
PATH = f"/v1beta/models/{MODEL}:generateContent"
PROMPT = "How tall is the tower?"


class Review(pydantic.BaseModel):
    label: Literal["good", "bad"]
    score: float = pydantic.Field(ge=0, le=1)
    tags: list[str] = pydantic.Field(min_length=1, max_length=3)
    note: str | None


def once(url: str) -> types.HttpOptions:
    """Options for a client that never retries."""
    return types.HttpOptions(base_url=url, timeout=60_000, retry_options=types.HttpRetryOptions(attempts=1))


def developer_client(url: str, api_key: str = "k") -> genai.Client:
    return genai.Client(api_key=api_key, http_options=once(url))


def vertex_client(url: str) -> genai.Client:
    return genai.Client(
        vertexai=True,
        project="p",
        location="us-central1",
        credentials=Credentials(token="t"),  # type: ignore[no-untyped-call]
        http_options=once(url),
    )


@pytest.fixture(scope="module")
def clients(server: Sandbox) -> Iterator[dict[str, genai.Client]]:
    found = {"developer": developer_client(server.gemini_url), "vertex": vertex_client(server.gemini_url)}
    yield found
    for client in found.values():
        client.close()


@pytest.fixture
def developer(sandbox: Sandbox, clients: dict[str, genai.Client]) -> genai.Client:
    return clients["developer"]


@pytest.fixture(params=["developer", "vertex"])
def gemini(sandbox: Sandbox, clients: dict[str, genai.Client], request: pytest.FixtureRequest) -> genai.Client:
    return clients[request.param]


def ask(client: genai.Client, prompt: str = PROMPT, **config: Any) -> types.GenerateContentResponse:
    return client.models.generate_content(
        model=MODEL, contents=prompt, config=types.GenerateContentConfig(**config) if config else None
    )


def ask_async(url: str, make: Callable[[str], genai.Client] = developer_client) -> types.GenerateContentResponse:
    async def go() -> types.GenerateContentResponse:
        client = make(url)
        try:
            return await client.aio.models.generate_content(model=MODEL, contents=PROMPT)
        finally:
            await client.aio.aclose()
            client.close()

    return asyncio.run(go())


def test_an_answer_has_text_usage_and_a_reason_to_stop(gemini: genai.Client) -> None:
    response = ask(gemini)
    assert response.text is not None
    assert response.text.startswith("How tall is the tower [")
    assert response.candidates is not None
    assert response.candidates[0].finish_reason == types.FinishReason.STOP
    usage = response.usage_metadata
    assert usage is not None
    assert (usage.prompt_token_count, usage.total_token_count) == (6, 6 + (usage.candidates_token_count or 0))
    assert response.model_version == MODEL


@pytest.mark.parametrize("make", [developer_client, vertex_client])
def test_the_asynchronous_client_gets_the_same_answer(
    sandbox: Sandbox, developer: genai.Client, make: Callable[[str], genai.Client]
) -> None:
    assert ask_async(sandbox.gemini_url, make).text == ask(developer).text


def test_only_vertex_reports_a_traffic_type(clients: dict[str, genai.Client]) -> None:
    usages = [ask(clients[name]).usage_metadata for name in ("developer", "vertex")]
    assert [usage and usage.traffic_type for usage in usages] == [None, types.TrafficType.ON_DEMAND]


def test_every_answer_has_its_own_id(developer: genai.Client) -> None:
    assert ask(developer).response_id != ask(developer).response_id


def test_a_pydantic_schema_gives_a_parsed_answer(gemini: genai.Client) -> None:
    response = ask(gemini, response_mime_type="application/json", response_schema=Review)
    assert isinstance(response.parsed, Review)


def test_a_json_schema_gives_an_answer_that_satisfies_it(gemini: genai.Client) -> None:
    schema = Review.model_json_schema()
    for number in range(10):
        response = ask(gemini, f"row {number}", response_mime_type="application/json", response_json_schema=schema)
        jsonschema.validate(json.loads(response.text or ""), schema)


def test_json_without_a_schema_gives_an_object(developer: genai.Client) -> None:
    assert "answer" in json.loads(ask(developer, response_mime_type="application/json").text or "")


def test_an_enum_is_answered_bare(developer: genai.Client) -> None:
    response = ask(
        developer,
        response_mime_type="text/x.enum",
        response_schema={"type": "STRING", "enum": ["good", "bad"]},
    )
    assert response.text in ("good", "bad")


def test_an_answer_over_the_limit_is_cut(developer: genai.Client) -> None:
    response = ask(developer, max_output_tokens=3)
    assert response.candidates is not None
    assert response.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
    assert len((response.text or "").encode()) == 12


def test_a_blocked_prompt_has_no_candidates(gemini: genai.Client) -> None:
    response = ask(gemini, "tell me [[block]]")
    assert response.text is None
    assert response.prompt_feedback is not None
    assert response.prompt_feedback.block_reason == types.BlockedReason.SAFETY


def test_tokens_are_counted_and_not_billed(sandbox: Sandbox, gemini: genai.Client) -> None:
    assert gemini.models.count_tokens(model=MODEL, contents="abcdefgh").total_tokens == 2
    assert sandbox.requests.paid() == {}


def test_a_stream_joins_to_the_whole_answer(gemini: genai.Client) -> None:
    chunks = list(gemini.models.generate_content_stream(model=MODEL, contents=PROMPT))
    assert len(chunks) == 4
    assert "".join(chunk.text or "" for chunk in chunks) == ask(gemini).text
    assert chunks[-1].usage_metadata is not None


def test_a_stream_without_sse_is_one_json_array(http: httpx.Client) -> None:
    path = PATH.replace("generateContent", "streamGenerateContent")
    parts = http.post(path, json={"contents": [{"parts": [{"text": "hi"}]}]}).json()
    assert len(parts) == 4
    assert parts[-1]["candidates"][0]["finishReason"] == "STOP"


def test_the_system_text_is_part_of_the_prompt(sandbox: Sandbox, developer: genai.Client) -> None:
    ask(developer, system_instruction="Be brief.")
    assert sandbox.requests[0].prompt_sha256 == prompt_sha256(PROMPT, "Be brief.")
    assert sandbox.requests[0].input_tokens == 6 + 3


def test_proto_field_names_are_understood(http: httpx.Client) -> None:
    body = {
        "contents": {"parts": [{"text": "hi"}]},
        "generation_config": {"response_mime_type": "application/json"},
    }
    text = http.post(PATH, json=body).json()["candidates"][0]["content"]["parts"][0]["text"]
    assert json.loads(text)


def test_express_mode_takes_an_api_key_on_a_vertex_path(http: httpx.Client) -> None:
    response = http.post(
        f"/v1/publishers/google/models/{MODEL}:generateContent",
        json={"contents": [{"parts": [{"text": "hi"}]}]},
    )
    assert response.json()["usageMetadata"]["trafficType"] == "ON_DEMAND"


def test_a_body_of_32_megabytes_is_read() -> None:
    with Sandbox(models=ModelSettings(input_token_limit=20_000_000)) as large:
        body = {"contents": [{"parts": [{"text": "x" * 32_000_000}]}]}
        response = httpx.post(large.url + PATH, json=body, headers={"x-goog-api-key": "k"}, timeout=60)
        assert response.json()["usageMetadata"]["promptTokenCount"] == 8_000_000


# Refusals


def test_an_unregistered_caller_is_refused(sandbox: Sandbox) -> None:
    error = httpx.post(sandbox.url + PATH, json={"contents": []}).json()["error"]
    assert (error["code"], error["status"]) == (403, "PERMISSION_DENIED")
    assert error["message"].startswith("Method doesn't allow unregistered callers")


def test_an_invalid_key_is_refused(sandbox: Sandbox) -> None:
    client = developer_client(sandbox.gemini_url, api_key="invalid")
    with pytest.raises(errors.ClientError) as caught:
        ask(client)
    client.close()
    assert caught.value.code == 400
    assert caught.value.details["error"]["details"][0]["reason"] == "API_KEY_INVALID"


def test_vertex_without_a_token_is_refused(http: httpx.Client) -> None:
    path = f"/v1beta1/projects/p/locations/us-central1/publishers/google/models/{MODEL}:generateContent"
    response = http.post(path, json={"contents": [{"parts": [{"text": "hi"}]}]})
    assert (response.status_code, response.json()["error"]["status"]) == (401, "UNAUTHENTICATED")


def test_an_unknown_model_is_not_found(gemini: genai.Client) -> None:
    with pytest.raises(errors.ClientError, match="not found") as caught:
        gemini.models.generate_content(model="gpt-4", contents="hi")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


def test_a_path_that_is_no_method_is_not_found(http: httpx.Client) -> None:
    response = http.post(f"/v1beta/models/{MODEL}:predict", json={})
    assert (response.status_code, response.json()["error"]["status"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{}", "contents is not specified"),
        (b'{"contents": []}', "contents is not specified"),
        (b"[]", "Invalid JSON payload"),
        (b"{", "Invalid JSON payload"),
        (b'{"contents": "hi"}', "Invalid JSON payload"),
        (b'{"contents": [{"role": "assistant", "parts": [{"text": "hi"}]}]}', "valid role"),
        (
            b'{"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": {"maxOutputTokens": 0}}',
            "max_output_tokens must be positive",
        ),
        (
            b'{"contents": [{"parts": []}], "generationConfig": {"responseSchema": {"enum": []}}}',
            "`enum` must be a list",
        ),
    ],
)
def test_a_malformed_request_is_an_invalid_argument(http: httpx.Client, body: bytes, message: str) -> None:
    error = http.post(PATH, content=body).json()["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert message in error["message"]


def test_a_prompt_over_the_limit_is_refused() -> None:
    with Sandbox(models=ModelSettings(input_token_limit=5)) as small:
        client = developer_client(small.gemini_url)
        with pytest.raises(errors.ClientError, match=r"input token count \(6\) exceeds .* allowed \(5\)"):
            ask(client)
        client.close()


# Faults

GARBAGE: dict[FaultKind, tuple[type[Exception], type[Exception]]] = {
    "error": (errors.ServerError, errors.ServerError),
    "rate-limit": (errors.ClientError, errors.ClientError),
    "garbage": (json.JSONDecodeError, json.JSONDecodeError),
    "garbage-json": (json.JSONDecodeError, json.JSONDecodeError),
    "truncated": (json.JSONDecodeError, json.JSONDecodeError),
    "drop": (httpx.RemoteProtocolError, aiohttp.ClientPayloadError),
    "disconnect": (httpx.RemoteProtocolError, aiohttp.ServerDisconnectedError),
}
BILLED: frozenset[FaultKind] = frozenset({"truncated", "drop", "disconnect"})


@pytest.mark.parametrize("kind", GARBAGE)
def test_the_clients_raise_on_every_fault(sandbox: Sandbox, gemini: genai.Client, kind: FaultKind) -> None:
    sandbox.faults.queue("gemini.generateContent", Fault(kind=kind), Fault(kind=kind))
    synchronous, asynchronous = GARBAGE[kind]
    with pytest.raises(synchronous):
        ask(gemini)
    with pytest.raises(asynchronous):
        ask_async(sandbox.gemini_url)
    sandbox.faults.assert_all_consumed()
    assert ask(gemini).text
    paid = sandbox.requests.paid("gemini.generateContent")
    assert paid[prompt_sha256(PROMPT)] == (3 if kind in BILLED else 1)


def test_a_hang_ends_when_the_client_gives_up_and_is_not_billed(sandbox: Sandbox) -> None:
    sandbox.faults.queue("gemini.generateContent", Fault(kind="hang"))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            sandbox.url + PATH,
            json={"contents": [{"parts": [{"text": "hi"}]}]},
            headers={"x-goog-api-key": "k"},
            timeout=0.1,
        )
    assert [(record.http_status, record.answered_at) for record in sandbox.requests] == [(None, None)]
    assert sandbox.requests.paid() == {}
    assert sandbox.stats()["methods"]["gemini.generateContent"]["by_http_status"] == {"none": 1}


@pytest.mark.parametrize("http_status", [400, 403, 500, 502, 503, 504])
def test_an_error_has_the_configured_status_and_message(
    sandbox: Sandbox, gemini: genai.Client, http_status: int
) -> None:
    fault = Fault(kind="error", http_status=http_status, message="Out of order.")
    sandbox.faults.queue("gemini.generateContent", fault)
    with pytest.raises(errors.APIError) as caught:
        ask(gemini)
    assert (caught.value.code, caught.value.message) == (http_status, "Out of order.")


def test_a_rate_limit_has_its_retry_delay_only_in_the_body(sandbox: Sandbox, gemini: genai.Client) -> None:
    sandbox.faults.queue("gemini.generateContent", Fault(kind="rate-limit", retry_delay_seconds=1.5))
    with pytest.raises(errors.ClientError) as caught:
        ask(gemini)
    assert caught.value.status == "RESOURCE_EXHAUSTED"
    (detail,) = caught.value.details["error"]["details"]
    assert detail == {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.5s"}
    assert caught.value.response is not None
    assert "retry-after" not in caught.value.response.headers


def test_a_rate_limit_can_omit_the_retry_delay(sandbox: Sandbox, gemini: genai.Client) -> None:
    sandbox.faults.queue("gemini.generateContent", Fault(kind="rate-limit", retry_delay_seconds=None))
    with pytest.raises(errors.ClientError) as caught:
        ask(gemini)
    assert "details" not in caught.value.details["error"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(kind="stream-error", http_status=503), errors.ServerError),
        (Fault(kind="drop"), httpx.RemoteProtocolError),
        (Fault(kind="truncated"), errors.UnknownApiResponseError),
        (Fault(kind="error"), errors.ServerError),
    ],
)
def test_a_stream_breaks(sandbox: Sandbox, gemini: genai.Client, fault: Fault, expected: type[Exception]) -> None:
    sandbox.faults.queue("gemini.streamGenerateContent", fault)
    with pytest.raises(expected):
        list(gemini.models.generate_content_stream(model=MODEL, contents=PROMPT))
    sandbox.faults.assert_all_consumed()


def test_a_stream_error_comes_after_the_first_chunk(sandbox: Sandbox, developer: genai.Client) -> None:
    sandbox.faults.queue("gemini.streamGenerateContent", Fault(kind="stream-error"))
    stream = developer.models.generate_content_stream(model=MODEL, contents=PROMPT)
    assert next(stream).text
    with pytest.raises(errors.ServerError):
        next(stream)


def test_a_stream_error_in_a_json_array_is_its_last_element(sandbox: Sandbox, http: httpx.Client) -> None:
    sandbox.faults.queue("gemini.streamGenerateContent", Fault(kind="stream-error"))
    path = PATH.replace("generateContent", "streamGenerateContent")
    parts = http.post(path, json={"contents": [{"parts": [{"text": "hi"}]}]}).json()
    assert [next(iter(part)) for part in parts] == ["candidates", "error"]


def test_free_methods_get_faults_too(sandbox: Sandbox, developer: genai.Client) -> None:
    sandbox.faults.queue("gemini.countTokens", Fault(kind="error", http_status=503))
    with pytest.raises(errors.ServerError):
        developer.models.count_tokens(model=MODEL, contents="hi")


def test_a_refused_request_consumes_no_fault(sandbox: Sandbox, http: httpx.Client) -> None:
    sandbox.faults.queue("gemini.generateContent", Fault(kind="error"))
    assert http.post(PATH, json={}).status_code == 400
    assert sandbox.faults.left() == {"gemini.generateContent": 1}


def test_a_rule_matches_the_system_text_too(sandbox: Sandbox, developer: genai.Client) -> None:
    sandbox.faults.when("gemini.generateContent", "Be brief", Fault(kind="error"), times=1)
    assert ask(developer).text
    with pytest.raises(errors.ServerError):
        ask(developer, system_instruction="Be brief.")
    sandbox.faults.assert_all_consumed()


# Quota


def test_a_used_up_quota_names_the_limit_and_the_delay(clock: ManualClock) -> None:
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=10)), clock=clock) as limited:
        client = developer_client(limited.gemini_url)
        ask(client)
        with pytest.raises(errors.ClientError) as caught:
            ask(client)
        failure, retry = caught.value.details["error"]["details"]
        assert failure["violations"][0]["quotaId"] == "GenerateRequestsPerMinutePerProjectPerModel"
        assert failure["violations"][0]["quotaValue"] == "10"
        assert retry["retryDelay"] == "6s"
        clock.advance(6)
        assert ask(client).text
        client.close()
        assert limited.requests.paid().total() == 2


def test_a_daily_quota_is_recognised_by_its_id(clock: ManualClock) -> None:
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_day=1)), clock=clock) as limited:
        client = vertex_client(limited.gemini_url)
        ask(client)
        with pytest.raises(errors.ClientError) as caught:
            ask(client)
        client.close()
    violation = caught.value.details["error"]["details"][0]["violations"][0]
    assert "PerDay" in violation["quotaId"]


def test_output_tokens_use_the_quota_up(clock: ManualClock) -> None:
    with Sandbox(models=ModelSettings(quota=Quota(tokens_per_minute=180)), clock=clock) as limited:
        client = developer_client(limited.gemini_url)
        usage = ask(client).usage_metadata
        assert usage is not None
        with pytest.raises(errors.ClientError) as caught:
            ask(client)
        client.close()
    seconds = float(caught.value.details["error"]["details"][1]["retryDelay"].removesuffix("s"))
    # Capacity 6 tokens, 3 per second: the whole usage must be refilled.
    assert seconds == pytest.approx((usage.total_token_count or 0) / 3)


def test_a_hidden_window_omits_the_retry_delay(clock: ManualClock) -> None:
    quota = Quota(window=FixedWindow(requests=1, seconds=20), tells_retry_delay=False)
    with Sandbox(models=ModelSettings(quota=quota), clock=clock) as limited:
        client = vertex_client(limited.gemini_url)
        ask(client)
        with pytest.raises(errors.ClientError) as caught:
            ask(client)
        assert "retryDelay" not in json.dumps(caught.value.details)
        clock.advance(20)
        assert ask(client).text
        client.close()


def test_a_rejected_request_consumes_no_fault(clock: ManualClock) -> None:
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=1)), clock=clock) as limited:
        client = developer_client(limited.gemini_url)
        ask(client)
        limited.faults.queue("gemini.generateContent", Fault(kind="garbage"))
        with pytest.raises(errors.ClientError):
            ask(client)
        client.close()
        assert limited.faults.left() == {"gemini.generateContent": 1}


def test_vertex_records_the_labels_of_a_request(sandbox: Sandbox, clients: dict[str, genai.Client]) -> None:
    config = types.GenerateContentConfig(labels={"team": "data", "empty": ""})
    clients["vertex"].models.generate_content(model="gemini-2.5-flash", contents="Hello", config=config)
    assert sandbox.requests[-1].labels == (("empty", ""), ("team", "data"))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"Team": "x"}, "The label 'Team'='x' is invalid"),
        ({"team": "x" * 64}, "is invalid: keys and values may have 63 lowercase letters"),
        ({f"l{number}": "" for number in range(65)}, "A request may have 64 labels; it has 65."),
    ],
)
def test_vertex_refuses_labels_that_are_not_allowed(
    clients: dict[str, genai.Client], labels: dict[str, str], message: str
) -> None:
    config = types.GenerateContentConfig(labels=labels)
    with pytest.raises(errors.ClientError, match=message) as refused:
        clients["vertex"].models.generate_content(model="gemini-2.5-flash", contents="Hello", config=config)
    assert refused.value.code == 400


def test_the_developer_api_knows_no_labels(http: httpx.Client) -> None:
    body = {"contents": [{"parts": [{"text": "Hello"}]}], "labels": {"team": "data"}}
    answer = http.post(
        "/v1beta/models/gemini-2.5-flash:generateContent", json=body, headers={"x-goog-api-key": "k"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].endswith('Unknown name "labels": Cannot find field.')


@pytest.mark.parametrize(
    ("config", "words"),
    [({"seed": 2**31}, "generation_config.seed"), ({"stop_sequences": ["a"] * 6}, "at most 5")],
    ids=["seed", "stop_sequences"],
)
def test_values_above_the_documented_ones_are_refused(gemini: genai.Client, config: Any, words: str) -> None:
    with pytest.raises(errors.ClientError, match=words):
        ask(gemini, **config)
    assert ask(gemini, seed=2**31 - 1, stop_sequences=["a"] * 5).text
