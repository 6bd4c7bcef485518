from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google import genai
from google.genai import types
from google.oauth2 import credentials as google_credentials
from llmbeam_sandbox import Fault, ModelSettings, Quota, Sandbox, prompt_sha256
from pydantic import BaseModel

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt, Turn
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.gemini.client import (
    GeminiBackend,
    error_of,
    generation_config,
    read_reply,
    request_body,
)
from airflow_provider_llmbeam.providers.reported import UsageReader
from airflow_provider_llmbeam.spec import GeminiModel, Generation
from tests.asking import ask_each

pytestmark = pytest.mark.promise(5)
METHOD = "gemini.generateContent"
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["good", "bad"]}},
    "required": ["label"],
    "additionalProperties": False,
}
TYPE = "type.googleapis.com/google.rpc."
USAGE = {"promptTokenCount": 5, "candidatesTokenCount": 6, "thoughtsTokenCount": 7, "totalTokenCount": 18}


def ask(
    model: GeminiModel, *prompts: Prompt, generation: Generation | None = None, schema: Any = None
) -> list[Reply | RequestError]:
    """Sends each prompt once, through one client."""

    async def main() -> list[Reply | RequestError]:
        return await ask_each(GeminiBackend(model, generation or Generation(), schema), *prompts)

    return asyncio.run(main())


def credentials(path: Path, **changes: Any) -> str:
    """Google credentials as `gcloud auth application-default login` writes them, with a valid token."""
    path.write_text(
        json.dumps(
            {
                "type": "authorized_user",
                "client_id": "sandbox",
                "client_secret": "none",
                "refresh_token": "none",
                "quota_project_id": "p",
                "token": "t",
                "expiry": (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
                **changes,
            }
        )
    )
    return str(path)


@pytest.fixture(params=["developer", "vertex"])
def model(
    request: pytest.FixtureRequest, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> GeminiModel:
    """The same model through the Gemini Developer API and through Vertex AI."""
    if request.param == "developer":
        monkeypatch.setenv("GOOGLE_API_KEY", "k")
        return GeminiModel(base_url=sandbox.gemini_url)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials(tmp_path / "adc.json"))
    return GeminiModel(project="p", location="us-central1", base_url=sandbox.gemini_url)


@pytest.fixture
def developer(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> GeminiModel:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    return GeminiModel(base_url=sandbox.gemini_url)


# Replies


def response(**body: Any) -> dict[str, Any]:
    return {"usageMetadata": USAGE, **body}


def read(body: dict[str, Any], model: str = "m") -> Reply:
    return read_reply(body, Prompt("hello"), model, UsageReader(model))


def candidate(text: str = "Hi.", **changes: Any) -> dict[str, Any]:
    return {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP", **changes}


def refusal(body: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(body)
    return caught.value


def test_an_answer_is_read_and_thoughts_are_billed() -> None:
    assert read(response(candidates=[candidate()], modelVersion="gemini-3.5-flash-lite-001")) == Reply(
        text="Hi.",
        finish_reason="stop",
        tokens=Tokens(5, 13, reasoning=7),
        model="gemini-3.5-flash-lite-001",
    )


@pytest.mark.parametrize(("reported", "cached"), [(4, 4), (0, 0), (None, 0), (6, 5), (-1, 0), ("4", 0)])
def test_tokens_from_the_cache_are_part_of_the_input(reported: Any, cached: int) -> None:
    usage = {**USAGE, "cachedContentTokenCount": reported}
    reply = read({"candidates": [candidate()], "usageMetadata": usage})
    assert (reply.tokens.input, reply.tokens.cached) == (5, cached)
    assert refusal({"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": usage}).tokens.cached == cached


@pytest.mark.parametrize(
    ("prompt", "cached", "audio"), [(3, None, 3), (3, 2, 1), (9, 0, 4), (1, 3, 0), ("3", None, 0), (None, None, 0)]
)
def test_tokens_of_audio_that_are_not_from_the_cache_are_counted(prompt: Any, cached: Any, audio: int) -> None:
    usage = {
        **USAGE,
        "cachedContentTokenCount": 1,
        "promptTokensDetails": [
            {"modality": "TEXT", "tokenCount": 2},
            {"modality": "AUDIO", "tokenCount": prompt},
        ],
        "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": cached}],
    }
    assert read({"candidates": [candidate()], "usageMetadata": usage}).tokens.audio == audio
    assert refusal({"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": usage}).tokens.audio == audio


def test_an_answer_without_usage_and_version_is_read() -> None:
    assert read({"candidates": [candidate()]}) == Reply(
        text="Hi.", finish_reason="stop", tokens=Tokens(1, 1, estimated=2), model="m"
    )


def test_thoughts_are_no_part_of_the_answer() -> None:
    parts = [{"text": "Hm.", "thought": True}, {"text": "It is "}, {"text": "300 m."}]
    body = response(candidates=[candidate(content={"parts": parts})])
    assert (read(body).text, read(body).reasoning) == ("It is 300 m.", "Hm.")


@pytest.mark.parametrize("content", [None, {}, {"role": "model"}, {"parts": []}])
def test_an_answer_that_was_all_thoughts_is_empty(content: Any) -> None:
    body = response(candidates=[{"content": content, "finishReason": "MAX_TOKENS"}])
    reply = read(body)
    assert (reply.text, reply.finish_reason) == ("", "max_tokens")


def test_a_missing_finish_reason_is_a_normal_end() -> None:
    assert read(response(candidates=[candidate(finishReason=None)])).finish_reason == "stop"


@pytest.mark.parametrize("reason", [reason.name for reason in types.FinishReason])
def test_each_finish_reason_either_ends_or_withholds_the_answer(reason: str) -> None:
    body = response(candidates=[candidate(finishReason=reason, finishMessage="because")])
    if reason in ("STOP", "MAX_TOKENS"):
        assert read(body).finish_reason == reason.lower()
    else:
        error = refusal(body)
        words = ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR")
        is_of_content = any(word in reason for word in words)
        assert (error.kind, error.http_status) == ("blocked" if is_of_content else "garbage", 200)
        assert error.message == f"answer withheld: {reason} because"
        assert (error.tokens.input, error.tokens.output) == (5, 13)


def test_a_blocked_prompt_has_the_block_reason() -> None:
    error = refusal(response(promptFeedback={"blockReason": "SAFETY", "blockReasonMessage": "No."}))
    assert (error.kind, error.message, error.tokens.input) == ("blocked", "prompt blocked: SAFETY No.", 5)
    assert error.category == "SAFETY"


RATINGS = [
    {"category": "HARM_CATEGORY_HARASSMENT", "probability": "HIGH", "blocked": True},
    {"category": "HARM_CATEGORY_HATE_SPEECH", "probability": "LOW"},
    {"category": "HARM_CATEGORY_DANGEROUS_CONTENT", "probability": "HIGH", "blocked": True},
]


@pytest.mark.parametrize(
    ("ratings", "category"),
    [
        (RATINGS, "HARM_CATEGORY_DANGEROUS_CONTENT,HARM_CATEGORY_HARASSMENT"),
        (RATINGS[1:2], "SAFETY"),
        ([{"category": "a,b", "blocked": True}], "a b"),
        ("none", "SAFETY"),
        ([7, {"blocked": True}], "SAFETY"),
    ],
)
def test_the_categories_of_a_block_are_those_whose_ratings_blocked_it(ratings: Any, category: str) -> None:
    in_prompt = refusal(response(promptFeedback={"blockReason": "SAFETY", "safetyRatings": ratings}))
    in_answer = refusal(response(candidates=[{"finishReason": "SAFETY", "safetyRatings": ratings}]))
    assert in_prompt.category == in_answer.category == category


@pytest.mark.parametrize("body", [{}, {"candidates": []}, {"promptFeedback": {}}])
def test_a_reply_without_an_answer_and_a_reason_is_garbage(body: dict[str, Any]) -> None:
    error = refusal(body)
    assert (error.kind, error.http_status) == ("garbage", 200)


# Errors


def error(http_status: int, *details: Any, retry_after_seconds: float | None = None) -> RequestError:
    body = {"error": {"code": http_status, "message": "no", "status": "NO", "details": list(details)}}
    headers = {} if retry_after_seconds is None else {"Retry-After": str(retry_after_seconds)}
    return error_of(http_status, headers, json.dumps(body))


def advice(delay: Any) -> dict[str, Any]:
    return {"@type": f"{TYPE}RetryInfo", "retryDelay": delay}


def violation(quota_id: str) -> dict[str, Any]:
    return {"@type": f"{TYPE}QuotaFailure", "violations": [{"quotaId": quota_id}]}


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        ("47s", 47.0),
        ("34.074824224s", 34.074824224),
        ("0s", 0.0),
        ("-1s", 0.0),
        ("soon", None),
        ("", None),
        (3, 3.0),
    ],
)
def test_the_retry_delay_of_a_429_is_read_from_its_body(delay: Any, seconds: float | None) -> None:
    assert error(429, violation("PerMinute"), advice(delay)).retry_after_seconds == seconds


def test_a_retry_after_header_takes_precedence() -> None:
    assert error(429, advice("47s"), retry_after_seconds=9.0).retry_after_seconds == 9.0


@pytest.mark.parametrize("details", [[], [{"@type": f"{TYPE}RetryInfo"}], [{"retryDelay": "4s"}], ["odd"], [None]])
def test_a_429_without_a_retry_delay_has_none(details: list[Any]) -> None:
    assert error(429, *details).retry_after_seconds is None


@pytest.mark.parametrize(
    ("quota_id", "kind"),
    [
        ("GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quota_exhausted"),
        ("GenerateRequestsPerMinutePerProjectPerModel", "throttled"),
        ("", "throttled"),
    ],
)
def test_a_quota_per_day_is_exhausted_although_the_server_sends_a_retry_delay(quota_id: str, kind: str) -> None:
    found = error(429, advice("47s"), violation(quota_id))
    assert (found.kind, found.http_status, found.retry_after_seconds) == (kind, 429, 47.0)
    assert found.message == "no"


@pytest.mark.parametrize(("limit", "kind"), [("0", "quota_exhausted"), ("10", "throttled"), ("0.5", "throttled")])
def test_a_quota_of_zero_per_minute_is_exhausted(limit: str, kind: str) -> None:
    message = f"Quota exceeded for metric: generate_content_free_tier_requests, limit: {limit}, model: m"
    body = {"error": {"code": 429, "message": message, "details": [violation("PerMinute")]}}
    assert error_of(429, {}, json.dumps(body)).kind == kind


def test_a_400_for_an_invalid_key_is_unauthorized() -> None:
    found = error(400, {"@type": f"{TYPE}ErrorInfo", "reason": "API_KEY_INVALID"})
    assert (found.kind, found.http_status) == ("unauthorized", 400)


def test_any_other_400_is_a_bad_request() -> None:
    assert error(400, {"reason": "INVALID_ARGUMENT"}).kind == "bad_request"


# Requests


def test_only_parameters_that_are_set_are_sent() -> None:
    assert generation_config(Generation(), None) == {"maxOutputTokens": 1024}


def test_every_parameter_that_is_set_is_sent() -> None:
    generation = Generation(
        max_output_tokens=9,
        temperature=0.0,
        top_p=0.5,
        seed=0,
        stop_sequences=("END",),
        thinking_budget_tokens=0,
    )
    assert generation_config(generation, SCHEMA) == {
        "maxOutputTokens": 9,
        "temperature": 0.0,
        "topP": 0.5,
        "seed": 0,
        "stopSequences": ["END"],
        "thinkingConfig": {"thinkingBudget": 0},
        "responseMimeType": "application/json",
        "responseJsonSchema": SCHEMA,
    }


def test_thoughts_are_asked_for_if_reasoning_is_kept() -> None:
    asked = generation_config(Generation(keep_reasoning=True), None, as_batch=True)
    assert asked["thinkingConfig"] == {"includeThoughts": True}
    asked = generation_config(Generation(keep_reasoning=True, thinking_level="low"), None)
    assert asked["thinkingConfig"] == {"includeThoughts": True, "thinkingLevel": "LOW"}


def test_an_empty_schema_still_requests_json() -> None:
    assert generation_config(Generation(), {})["responseMimeType"] == "application/json"


def test_a_history_becomes_contents_of_the_user_and_the_model() -> None:
    assert request_body(Prompt("And now?", history=(Turn("Hi", "Hello"),)), {})["contents"] == [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"text": "Hello"}]},
        {"role": "user", "parts": [{"text": "And now?"}]},
    ]


def test_media_precedes_the_text_as_bytes_or_as_an_address() -> None:
    media = (("data:image/png;base64,aGk=", "image/png"), ("gs://b/b", "audio/wav"))
    assert request_body(Prompt("What?", media=media), {})["contents"][0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        {"fileData": {"fileUri": "gs://b/b", "mimeType": "audio/wav"}},
        {"text": "What?"},
    ]


VERTEX = "aiplatform.googleapis.com/v1beta1/projects/p/locations"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({}, "https://generativelanguage.googleapis.com/v1beta/models/gemini-3.5-flash-lite"),
        ({"name": "models/x"}, "https://generativelanguage.googleapis.com/v1beta/models/x"),
        ({"name": "tunedModels/x"}, "https://generativelanguage.googleapis.com/v1beta/tunedModels/x"),
        ({"base_url": "http://127.0.0.1:9/"}, "http://127.0.0.1:9/v1beta/models/gemini-3.5-flash-lite"),
        ({"project": "p"}, f"https://{VERTEX}/global/publishers/google/models/gemini-3.5-flash-lite"),
        (
            {"project": "p", "location": "europe-west4"},
            f"https://europe-west4-{VERTEX}/europe-west4/publishers/google/models/gemini-3.5-flash-lite",
        ),
        (
            {"project": "p", "location": "eu", "name": "x"},
            "https://aiplatform.eu.rep.googleapis.com/v1beta1/projects/p/locations/eu/publishers/google/models/x",
        ),
        ({"project": "p", "name": "meta/llama"}, f"https://{VERTEX}/global/publishers/meta/models/llama"),
        (
            {"project": "p", "name": "projects/1/locations/us-central1/endpoints/2"},
            "https://aiplatform.googleapis.com/v1beta1/projects/1/locations/us-central1/endpoints/2",
        ),
    ],
)
def test_the_project_and_location_determine_the_address(given: dict[str, Any], address: str) -> None:
    assert GeminiModel(**given).address == address


@pytest.mark.parametrize("project", [None, "p"])
@pytest.mark.parametrize("location", ["global", "us", "eu", "us-central1"])
@pytest.mark.parametrize("name", ["x", "models/x"])
def test_the_address_is_the_one_that_google_genai_uses(
    project: str | None, location: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detects a change of the address in google-genai."""
    urls: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        urls.append(str(request.url))
        return httpx.Response(200, json={"candidates": []})

    options = types.HttpOptions(httpx_client=httpx.Client(transport=httpx.MockTransport(answer)))
    token = google_credentials.Credentials(token="t")
    access: dict[str, Any] = (
        {"vertexai": True, "project": project, "location": location, "credentials": token}
        if project
        else {"api_key": "k"}
    )
    with genai.Client(**access, http_options=options) as client:
        client.models.generate_content(model=name, contents="a")
    assert urls == [f"{GeminiModel(project=project, location=location, name=name).address}:generateContent"]


def test_each_field_of_a_request_is_one_that_google_genai_knows() -> None:
    """Its types allow no other fields."""
    generation = Generation(max_output_tokens=5, temperature=0.5, stop_sequences=("x",), thinking_budget_tokens=7)
    media = (("gs://b/a.png", "image/png"), ("data:image/png;base64,aGk=", None))
    prompt = Prompt("What?", system="Be brief.", history=(Turn("Hi", "Hello"),), media=media)
    body = request_body(prompt, generation_config(generation, SCHEMA))
    assert body.keys() == {"contents", "systemInstruction", "generationConfig"}
    for content in (*body["contents"], body["systemInstruction"]):
        assert plain(types.Content, content) == content
    assert plain(types.GenerationConfig, body["generationConfig"]) == body["generationConfig"]


def plain(kind: type[BaseModel], value: dict[str, Any]) -> dict[str, Any]:
    """Returns a value that its type has parsed, as it is sent."""
    return kind.model_validate(value).model_dump(mode="json", by_alias=True, exclude_none=True)


def test_fields_that_are_not_read_may_be_of_any_type() -> None:
    part = {"text": "Hi.", "brandNew": {"a": 1}}
    odd = {"alsoNew": [], "index": "first", "safetyRatings": 5}
    body = {"candidates": [{**candidate(content={"parts": [part]}), **odd}], "evenThis": 1, "createTime": []}
    assert read(body).text == "Hi."


# Against the sandbox


def test_a_prompt_is_answered(sandbox: Sandbox, model: GeminiModel) -> None:
    (reply,) = ask(model, Prompt("How tall is it?", system="Be brief."))
    assert isinstance(reply, Reply)
    assert (reply.finish_reason, reply.model) == ("stop", "gemini-3.5-flash-lite")
    (record,) = sandbox.requests
    assert record.prompt_sha256 == prompt_sha256("How tall is it?", "Be brief.")
    assert (reply.tokens.input, reply.tokens.output) == (record.input_tokens, record.output_tokens)


def test_a_structured_answer_satisfies_its_schema(model: GeminiModel) -> None:
    (reply,) = ask(model, Prompt("Good or bad?"), schema=SCHEMA)
    jsonschema.validate(json.loads(reply.text), SCHEMA)


def test_an_answer_above_the_maximum_length_has_finish_reason_max_tokens(developer: GeminiModel) -> None:
    (reply,) = ask(developer, Prompt("How tall?"), generation=Generation(max_output_tokens=2))
    assert (reply.finish_reason, reply.tokens.output) == ("max_tokens", 2)


def test_a_429_has_the_retry_delay_and_is_not_retried_by_the_backend(sandbox: Sandbox, model: GeminiModel) -> None:
    sandbox.faults.queue(METHOD, Fault(kind="rate-limit", retry_delay_seconds=1.25))
    (error,) = ask(model, Prompt("a"))
    assert (error.kind, error.http_status, error.retry_after_seconds) == ("throttled", 429, 1.25)
    assert len(sandbox.requests) == 1


def test_a_429_can_omit_the_retry_delay(sandbox: Sandbox, developer: GeminiModel) -> None:
    sandbox.faults.queue(METHOD, Fault(kind="rate-limit", retry_delay_seconds=None))
    (error,) = ask(developer, Prompt("a"))
    assert (error.kind, error.retry_after_seconds) == ("throttled", None)


def test_a_daily_quota_differs_from_a_quota_per_minute(developer: GeminiModel) -> None:
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_day=1))) as scarce:
        there = developer.model_copy(update={"base_url": scarce.gemini_url})
        first, second = ask(there, Prompt("a"), Prompt("b"))
    assert isinstance(first, Reply)
    assert second.kind == "quota_exhausted"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(kind="garbage"), "garbage"),
        (Fault(kind="garbage-json"), "garbage"),
        (Fault(kind="truncated"), "garbage"),
        (Fault(kind="drop"), "connection"),
        (Fault(kind="disconnect"), "connection"),
        (Fault(kind="error", http_status=503), "server_error"),
        (Fault(kind="error", http_status=504), "server_error"),
        (Fault(kind="error", http_status=400), "bad_request"),
        (Fault(kind="error", http_status=403), "unauthorized"),
    ],
    ids=lambda value: f"{value.kind}-{value.http_status}" if isinstance(value, Fault) else None,
)
def test_each_fault_has_its_kind_and_is_not_retried_by_the_backend(
    sandbox: Sandbox, model: GeminiModel, fault: Fault, kind: str
) -> None:
    """The first request opens the connection: a client may re-send only what fails on a kept one."""
    sandbox.faults.when(METHOD, "unlucky", fault)
    first, error = ask(model, Prompt("hello"), Prompt("unlucky"))
    assert isinstance(first, Reply)
    assert isinstance(error, RequestError)
    assert error.kind == kind
    assert len(sandbox.requests) == 2


def test_a_request_can_be_cancelled(sandbox: Sandbox, model: GeminiModel) -> None:
    async def main() -> None:
        backend = GeminiBackend(model, Generation(), None)
        try:
            async with asyncio.timeout(0.5):
                await backend.complete(Prompt("a"))
        finally:
            await backend.aclose()

    sandbox.faults.queue(METHOD, Fault(kind="hang"))
    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert len(sandbox.requests) == 1


def test_a_blocked_prompt_has_its_tokens(sandbox: Sandbox, model: GeminiModel) -> None:
    (error,) = ask(model, Prompt("something [[block]]"))
    assert (error.kind, error.http_status) == ("blocked", 200)
    assert "SAFETY" in error.message
    assert error.tokens.input > 0


def test_an_invalid_key_differs_from_a_bad_request(
    developer: GeminiModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "invalid")
    (error,) = ask(developer, Prompt("a"))
    assert (error.kind, error.http_status) == ("unauthorized", 400)
    assert "API key not valid" in error.message


def test_a_model_that_does_not_exist_is_not_found(model: GeminiModel) -> None:
    (error,) = ask(model.model_copy(update={"name": "nonesuch"}), Prompt("a"))
    assert (error.kind, error.http_status) == ("not_found", 404)
    assert "nonesuch" in error.message


def test_a_server_that_does_not_listen_is_a_connection_error(developer: GeminiModel) -> None:
    (error,) = ask(developer.model_copy(update={"base_url": "http://127.0.0.1:9"}), Prompt("a"))
    assert (error.kind, error.http_status) == ("connection", None)


def test_a_lone_surrogate_in_a_prompt_causes_no_retry(developer: GeminiModel) -> None:
    (reply,) = ask(developer, Prompt("cut \ud83d"))
    assert isinstance(reply, Reply) or reply.kind == "bad_request"


def test_the_alternative_variable_of_the_key_is_read_too(
    sandbox: Sandbox, developer: GeminiModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY")
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    (reply,) = ask(developer, Prompt("a"))
    assert isinstance(reply, Reply)


def test_vertex_without_credentials_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without this check every row would fail one by one with an internal error."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))

    async def main() -> None:
        await GeminiBackend(GeminiModel(project="p"), Generation(), None).aclose()

    with pytest.raises(JobSpecError, match="Nothing was sent or billed"):
        asyncio.run(main())


def service_account(path: Path, token_uri: str) -> str:
    path.write_text(
        json.dumps(
            {
                "type": "service_account",
                "project_id": "p",
                "client_email": "job@p.example",
                "private_key": private_key(),
                "token_uri": token_uri,
            }
        )
    )
    return str(path)


def test_revoked_credentials_are_unauthorized(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The token service refuses, as it would for every further row."""
    key = service_account(tmp_path / "key.json", f"{sandbox.url}/no-such-service")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
    (error,) = ask(GeminiModel(project="p", base_url=sandbox.gemini_url), Prompt("a"))
    assert error.kind == "unauthorized"
    assert len(sandbox.requests) == 0


def test_an_unreachable_token_service_is_a_connection_error(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error is transient: the row is retried, and sending does not stop."""
    key = service_account(tmp_path / "key.json", "http://127.0.0.1:9/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
    (error,) = ask(GeminiModel(project="p", base_url=sandbox.gemini_url), Prompt("a"))
    assert error.kind == "connection"


def test_a_token_is_renewed_once_for_all_requests(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    renewals = []

    def refresh(credentials: Any, _: Any) -> None:
        renewals.append(credentials)
        credentials.token, credentials.expiry = "t", datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)

    monkeypatch.setattr("google.oauth2.service_account.Credentials.refresh", refresh)
    key = service_account(tmp_path / "key.json", "http://127.0.0.1:9/token")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key)

    async def main() -> None:
        backend = GeminiBackend(GeminiModel(project="p", base_url=sandbox.gemini_url), Generation(), None)
        await asyncio.gather(*(backend.complete(Prompt(f"{number}")) for number in range(8)))
        await backend.complete(Prompt("later"))
        await backend.aclose()

    asyncio.run(main())
    assert (len(renewals), len(sandbox.requests)) == (1, 9)


def private_key() -> str:
    return (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )
