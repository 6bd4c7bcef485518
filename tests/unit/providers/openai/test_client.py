from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from llmbeam_sandbox import Fault, ModelSettings, Sandbox, prompt_sha256

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.prompt import Prompt, Turn
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.providers.openai.client import (
    ChatBackend,
    OpenAIBackend,
    chat_messages,
    error_of,
    model_parameters,
    read_reply,
)
from airflow_provider_llmbeam.providers.reported import UsageReader, json_object
from airflow_provider_llmbeam.providers.vertex_endpoint.client import _reply as predicted
from airflow_provider_llmbeam.spec import Generation, OpenAIModel
from tests.asking import ask_each
from tests.replying import Replying, raw

SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["good", "bad"]}},
    "required": ["label"],
    "additionalProperties": False,
}
METHOD = "openai.chatCompletions"


def model(base_url: str = "http://127.0.0.1:9/v1") -> OpenAIModel:
    return OpenAIModel(type="openai", name="gemma", base_url=base_url)


def ask(
    base_url: str, *prompts: Prompt, generation: Generation | None = None, schema: Any = None
) -> list[Reply | RequestError]:
    """Sends each prompt once, through one client."""

    async def main() -> list[Reply | RequestError]:
        return await ask_each(OpenAIBackend(model(base_url), generation or Generation(), schema), *prompts)

    return asyncio.run(main())


def body(**changes: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Hi.", **changes.pop("message", {})}
    return {
        "model": "gemma-3",
        "choices": [{"index": 0, "message": message, "finish_reason": changes.pop("finish_reason", "stop")}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6},
        **changes,
    }


def read(content: Any) -> Reply:
    text = content if isinstance(content, str) else json.dumps(content)
    content = text.encode()
    answer = json_object(content, "no chat completion", error_of)
    return read_reply(answer, content, Prompt("hello"), "gemma", UsageReader("gemma"))


def test_an_answer_is_read() -> None:
    assert read(body()) == Reply(text="Hi.", finish_reason="stop", tokens=Tokens(5, 6), model="gemma-3")


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("length", "max_tokens"),
        (None, "stop"),
        ("STOP", "stop"),
        ("eos_token", "eos_token"),
        ("tool_calls", "tool_calls"),
    ],
)
def test_a_finish_reason_is_normalised(reason: str | None, expected: str) -> None:
    assert read(body(finish_reason=reason)).finish_reason == expected


@pytest.mark.parametrize(("reported", "tokens"), [(2, 2), (99, 3), (None, 0), ("2", 0)])
def test_tokens_of_thoughts_are_part_of_the_output(reported: Any, tokens: int) -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "completion_tokens_details": {"reasoning_tokens": reported},
    }
    reply = read(body(usage=usage))
    assert (reply.tokens.output, reply.tokens.reasoning) == (3, tokens)


@pytest.mark.parametrize(
    ("details", "cached"), [({"cached_tokens": 4}, 4), ({"cached_tokens": 6}, 5), ({}, 0), (None, 0), ([4], 0)]
)
def test_tokens_from_the_cache_are_part_of_the_input(details: Any, cached: int) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": details}
    assert read(body(usage=usage)).tokens.cached == cached
    with pytest.raises(RequestError) as caught:
        read(body(usage=usage, finish_reason="content_filter"))
    assert caught.value.tokens.cached == cached


@pytest.mark.parametrize(("reported", "audio"), [(3, 3), (9, 4), (None, 0), ("3", 0)])
def test_tokens_of_audio_are_part_of_the_input_that_is_not_from_the_cache(reported: Any, audio: int) -> None:
    details = {"cached_tokens": 1, "audio_tokens": reported}
    usage = {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": details}
    assert read(body(usage=usage)).tokens.audio == audio


@pytest.mark.parametrize(
    ("usage", "output"),
    [
        ({"prompt_tokens": 10_120, "completion_tokens": 1_499, "total_tokens": 14_428}, 4_308),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, 5),
        ({"prompt_tokens": 10, "completion_tokens": 5}, 5),
        ({"completion_tokens": 5, "total_tokens": 15}, 5),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 1e300}, 5),
    ],
)
def test_thoughts_that_only_the_total_counts_are_output(usage: Any, output: int) -> None:
    assert read(body(usage=usage)).tokens.output == output


def test_an_answer_without_content_is_empty() -> None:
    assert read(body(message={"content": None})).text == ""


@pytest.mark.parametrize(
    ("changes", "category"),
    [
        ({"message": {"content": None, "refusal": "I cannot."}}, "refusal"),
        ({"finish_reason": "content_filter"}, "content_filter"),
    ],
    ids=str,
)
def test_a_withheld_answer_is_blocked_and_was_billed(changes: dict[str, Any], category: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(body(**changes))
    error = caught.value
    assert (error.kind, error.http_status, error.tokens.input, error.tokens.output) == ("blocked", 200, 5, 6)
    assert "I cannot." in error.message or "content_filter" in error.message
    assert error.category == category


@pytest.mark.parametrize("reason", ["abort", "error", "insufficient_system_resource", "repetition", "new"])
def test_an_answer_that_the_server_breaks_off_is_no_answer_and_was_billed(reason: str) -> None:
    with pytest.raises(RequestError, match=f"broken off \\(finish reason '{reason}'\\)") as caught:
        read(body(message={"content": "The contract ends on 3"}, finish_reason=reason))
    error = caught.value
    assert (error.kind, error.http_status, error.tokens.input, error.tokens.output) == ("garbage", 200, 5, 6)


def test_a_prompt_that_a_content_filter_refuses_is_blocked() -> None:
    refused = {"error": {"code": "content_filter", "message": "The prompt triggered the policy.", "status": 400}}
    error = error_of(400, {}, json.dumps(refused))
    assert (error.kind, error.category) == ("blocked", "content_filter")
    assert error_of(400, {}, '{"error": {"code": "other"}}').category is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "null",
        "[]",
        "{}",
        '"hi"',
        '{"choices": []}',
        '{"choices": [{}]}',
        '{"choices": [{"message": null}]}',
        '{"choices": {"0": "a"}}',
        '{"choices": [{"message": {"content": [5]}}]}',
    ],
)
def test_a_200_that_is_no_answer_is_garbage(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(text)
    assert (caught.value.kind, caught.value.http_status) == ("garbage", 200)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"error": {"message": "no such model", "code": null}}', "no such model"),
        ('{"error": "model not found"}', "model not found"),
        ('{"object": "error", "message": "too long", "code": 400}', "too long"),
        ('{"detail": "Server is pinned to another model"}', "Server is pinned to another model"),
        ('{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        ("<html>Bad Gateway</html>", "Bad Gateway"),
        ("", ""),
    ],
)
def test_an_error_keeps_the_message_of_the_server(text: str, message: str) -> None:
    assert message in error_of(400, {}, text).message


def test_an_account_without_balance_counts_as_an_exhausted_quota() -> None:
    text = '{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'
    assert error_of(429, {"Retry-After": "1"}, text).kind == "quota_exhausted"
    assert error_of(402, {}, '{"error": {"message": "Insufficient Balance"}}').kind == "quota_exhausted"


def test_a_429_keeps_the_retry_delay_of_its_header() -> None:
    error = error_of(429, {"Retry-After": "7"}, "{}")
    assert (error.kind, error.http_status, error.retry_after_seconds) == ("throttled", 429, 7.0)


def test_only_parameters_that_are_set_are_sent() -> None:
    assert model_parameters(model(), Generation(), None) == {"model": "gemma", "max_tokens": 1024}


def test_every_parameter_that_is_set_is_sent() -> None:
    generation = Generation(max_output_tokens=9, temperature=0.5, top_p=0.25, seed=0, stop_sequences=("END",))
    assert model_parameters(model(), generation, SCHEMA) == {
        "model": "gemma",
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.25,
        "seed": 0,
        "stop": ["END"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    }


def test_requests_to_openai_use_max_completion_tokens() -> None:
    own = OpenAIModel(type="openai", name="gpt")
    assert model_parameters(own, Generation(), None)["max_completion_tokens"] == 1024


def test_a_prompt_becomes_messages() -> None:
    assert chat_messages(Prompt("Hi", system="Be brief.")) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]


def test_a_history_becomes_messages_between_the_system_text_and_the_prompt() -> None:
    assert chat_messages(Prompt("And now?", system="Be brief.", history=(Turn("Hi", "Hello"),))) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "And now?"},
    ]


def test_media_is_sent_along_with_the_text() -> None:
    (message,) = chat_messages(Prompt("What is it?", media=(("https://h/a.png", "image/png"),)))
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "https://h/a.png"}},
        {"type": "text", "text": "What is it?"},
    ]


@pytest.mark.parametrize(
    ("uri", "mime_type", "part"),
    [
        (
            "data:image/webp;base64,aGk=",
            "image/webp",
            {"type": "image_url", "image_url": {"url": "data:image/webp;base64,aGk="}},
        ),
        (
            "data:audio/wav;base64,aGk=",
            "audio/wav",
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        ),
        (
            "data:audio/flac;base64,aGk=",
            "audio/flac",
            {"type": "audio_url", "audio_url": {"url": "data:audio/flac;base64,aGk="}},
        ),
        ("https://h/a.mp4", "video/mp4", {"type": "video_url", "video_url": {"url": "https://h/a.mp4"}}),
        ("https://h/a", None, {"type": "image_url", "image_url": {"url": "https://h/a"}}),
        (
            "data:application/pdf;base64,aGk=",
            "application/pdf",
            {
                "type": "file",
                "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,aGk="},
            },
        ),
    ],
)
def test_each_type_of_media_has_its_kind_of_part(uri: str, mime_type: str | None, part: dict[str, Any]) -> None:
    (message,) = chat_messages(Prompt("What is it?", media=((uri, mime_type),)))
    assert message["content"][0] == part


def test_a_prompt_is_answered(sandbox: Sandbox) -> None:
    (reply,) = ask(sandbox.openai_url, Prompt("How tall is it?", system="Be brief."))
    assert isinstance(reply, Reply)
    assert reply.finish_reason == "stop"
    assert reply.model == "gemma"
    (record,) = sandbox.requests
    assert record.prompt_sha256 == prompt_sha256("How tall is it?", "Be brief.")
    assert (reply.tokens.input, reply.tokens.output) == (record.input_tokens, record.output_tokens)


def test_an_answer_above_the_maximum_length_has_finish_reason_max_tokens(sandbox: Sandbox) -> None:
    (reply,) = ask(sandbox.openai_url, Prompt("How tall?"), generation=Generation(max_output_tokens=2))
    assert (reply.finish_reason, reply.tokens.output) == ("max_tokens", 2)


def test_a_structured_answer_satisfies_its_schema(sandbox: Sandbox) -> None:
    (reply,) = ask(sandbox.openai_url, Prompt("Good or bad?"), schema=SCHEMA)
    jsonschema.validate(json.loads(reply.text), SCHEMA)


def test_a_429_has_the_retry_delay(sandbox: Sandbox) -> None:
    sandbox.faults.queue(METHOD, Fault(kind="rate-limit", retry_delay_seconds=1.5))
    (error,) = ask(sandbox.openai_url, Prompt("a"))
    assert (error.kind, error.http_status, error.retry_after_seconds) == ("throttled", 429, 1.5), (
        "`retry-after-ms`"
    )
    assert "Rate limit reached" in error.message


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(kind="garbage"), "garbage"),
        (Fault(kind="garbage-json"), "garbage"),
        (Fault(kind="truncated"), "garbage"),
        (Fault(kind="drop"), "connection"),
        (Fault(kind="disconnect"), "connection"),
        (Fault(kind="error", http_status=503), "server_error"),
        (Fault(kind="error", http_status=400), "bad_request"),
        (Fault(kind="error", http_status=404), "not_found"),
    ],
    ids=lambda value: f"{value.kind}-{value.http_status}" if isinstance(value, Fault) else None,
)
def test_each_fault_has_its_kind_and_is_not_retried_by_the_backend(
    sandbox: Sandbox, fault: Fault, kind: str
) -> None:
    """The first request opens the connection: a client may re-send only what fails on a kept one."""
    sandbox.faults.when(METHOD, "unlucky", fault)
    first, error = ask(sandbox.openai_url, Prompt("hello"), Prompt("unlucky"))
    assert isinstance(first, Reply)
    assert isinstance(error, RequestError)
    assert error.kind == kind
    assert len(sandbox.requests) == 2


def test_a_server_that_does_not_listen_is_a_connection_error() -> None:
    (error,) = ask("http://127.0.0.1:9/v1", Prompt("a"))
    assert (error.kind, error.http_status) == ("connection", None)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox(models=ModelSettings(openai_api_key="secret")) as guarded:
        (refused,) = ask(guarded.openai_url, Prompt("a"))
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        (reply,) = ask(guarded.openai_url, Prompt("a"))
    assert (refused.kind, refused.http_status) == ("unauthorized", 401)
    assert isinstance(reply, Reply)


def test_a_prompt_with_a_lone_surrogate_is_sent(sandbox: Sandbox) -> None:
    (reply,) = ask(sandbox.openai_url, Prompt("cut \ud83d"))
    assert isinstance(reply, Reply) or reply.kind == "bad_request"


def test_closing_a_client_that_never_sent_does_nothing() -> None:
    assert ask("http://127.0.0.1:9/v1") == []


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("Fri, 01 Jan 2100 00:00:00 GMT", 86_400.0), (None, None)]
)
def test_a_503_has_the_wait_that_the_server_advises(
    sandbox: Sandbox, header: str | None, seconds: float | None
) -> None:
    sandbox.faults.queue(METHOD, Fault(kind="error", http_status=503, retry_after=header))
    (error,) = ask(sandbox.openai_url, Prompt("a"))
    assert (error.kind, error.http_status, error.retry_after_seconds) == ("server_error", 503, seconds)


def test_the_retry_info_of_google_is_read_from_its_openai_api_too() -> None:
    """Vertex AI answers there with the errors of Google, in a list."""
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "38.5s"}]
    text = json.dumps([{"error": {"code": 503, "message": "Overloaded.", "details": details}}])
    assert error_of(503, {}, text).retry_after_seconds == 38.5


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
#: Messages whose answer is "fine", of Magistral, Databricks, gateways, vLLM and OpenRouter.
CONTENTS: list[dict[str, Any]] = [
    {"content": [THINKING, {"type": "text", "text": "fine"}]},
    {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, {"text": "fine"}]},
    {"content": [{"type": "output_text", "text": "fi"}, {"type": "text", "text": "ne"}]},
    {"content": {"type": "text", "text": "fine"}},
    {"content": ["fi", "ne"]},
    {"content": "fine", "reasoning_content": "hm"},
    {"content": "fine", "reasoning": "hm", "reasoning_details": [{"text": "hm"}]},
    {"content": "fine", "reasoning": "hm", "reasoning_content": "hm"},
]


@pytest.mark.parametrize("message", CONTENTS, ids=str)
def test_the_texts_of_every_shape_of_content_are_the_answer(message: dict[str, Any]) -> None:
    reply = read(body(message=message))
    assert reply.text == "fine"
    assert reply.reasoning == ("hm" if "hm" in json.dumps(message) else "")
    prediction = predicted({"choices": [{"message": message}]}, "p", "m", UsageReader("m"))
    assert (prediction.text, prediction.reasoning) == (reply.text, reply.reasoning)


@pytest.mark.parametrize(
    "message",
    [{"content": None, "reasoning_content": "hm"}, {"content": [THINKING]}, {"content": "", "reasoning": "hm"}],
    ids=str,
)
def test_reasoning_alone_is_no_answer_and_is_named(message: dict[str, Any]) -> None:
    reply = read(body(message=message))
    with pytest.raises(RequestError, match="2 characters of reasoning alone") as caught:
        OutputParser(None).parse(reply)
    assert (caught.value.kind, caught.value.tokens.output) == ("garbage", 6)


def test_a_reply_of_another_shape_was_billed() -> None:
    with pytest.raises(RequestError) as caught:
        read(body(message={"content": 5}))
    assert (caught.value.kind, caught.value.tokens.input, caught.value.tokens.output) == ("garbage", 5, 6)


def test_the_field_for_the_length_is_learned_from_one_refusal() -> None:
    class Chat(ChatBackend):
        async def _send(self, parameters: Mapping[str, Any], prompt: Prompt) -> Reply:
            sent.append([*parameters])
            if "max_tokens" in parameters:
                raise error_of(400, {}, '{"error": {"message": "Use \'max_completion_tokens\' instead."}}')
            return read(body())

    sent: list[list[str]] = []
    backend = Chat(None, "", "m", Generation(), {"max_tokens": 5, "seed": 1}, error_of)  # type: ignore[arg-type]
    for _ in range(2):
        assert asyncio.run(backend.complete(Prompt("a"))).text == "Hi."
    assert sent == [["max_tokens", "seed"], *2 * [["max_completion_tokens", "seed"]]]


def test_the_field_for_the_length_and_further_fields_are_those_of_the_spec() -> None:
    model = OpenAIModel(type="openai", name="m", base_url="http://h/v1", max_tokens_field="max_completion_tokens")
    generation = Generation(max_output_tokens=5, extra_body={"min_p": 0.1, "max_completion_tokens": None})
    assert model_parameters(model, generation, None) == {"model": "m", "min_p": 0.1}
    assert model_parameters(model, Generation(max_output_tokens=5), None)["max_completion_tokens"] == 5


def test_a_server_that_only_streams_is_read() -> None:
    chunks = [
        {"choices": [{"delta": {"content": "fi"}}]},
        {"choices": [{"delta": {"content": "ne"}, "finish_reason": "stop"}]},
    ]
    content = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    with Replying(lambda _: raw(content, Content_Type="text/event-stream")) as server:
        backend = OpenAIBackend(
            OpenAIModel(type="openai", name="m", base_url=f"{server.url}/v1"), Generation(), None
        )

        async def text() -> str:
            try:
                return (await backend.complete(Prompt("a"))).text
            finally:
                await backend.aclose()

        assert asyncio.run(text()) == "fine"
