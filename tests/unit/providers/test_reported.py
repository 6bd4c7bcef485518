from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.gemini.client import error_of as gemini_error
from airflow_provider_llmbeam.providers.gemini.client import read_reply as gemini_reply
from airflow_provider_llmbeam.providers.openai.client import error_of as chat_error
from airflow_provider_llmbeam.providers.openai.client import read_reply as chat_reply
from airflow_provider_llmbeam.providers.reported import (
    MAX_TOKENS,
    ErrorOf,
    UsageReader,
    believable_tokens,
    finish_reason_of,
    json_object,
    name_of,
)
from airflow_provider_llmbeam.providers.vertex_endpoint.client import _reply as prediction_reply
from airflow_provider_llmbeam.providers.vertex_endpoint.client import error_of as vertex_error
from airflow_provider_llmbeam.spec import VertexEndpointModel

UNBELIEVABLE = [
    -1,
    MAX_TOKENS + 1,
    10**12,
    2**63,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    1e300,
    True,
    "12",
    [],
    {"a": [1]},
]


@pytest.mark.parametrize(("reported", "tokens"), [(0, 0), (12, 12), (12.0, 12), (MAX_TOKENS, MAX_TOKENS)])
def test_a_whole_number_is_believed(reported: Any, tokens: int) -> None:
    found = believable_tokens(reported)
    assert found == tokens
    assert type(found) is int


@pytest.mark.parametrize("reported", [None, *UNBELIEVABLE], ids=lambda value: str(value)[:9])
def test_any_other_value_is_no_number_of_tokens(reported: Any) -> None:
    assert believable_tokens(reported) is None


@pytest.mark.parametrize("reported", [None, 0, *UNBELIEVABLE], ids=lambda value: str(value)[:9])
def test_an_absent_or_unbelievable_number_is_an_estimate_that_is_marked(reported: Any) -> None:
    assert UsageReader("m").count(reported, 10) == (10, 10)
    assert UsageReader("m").count(reported, 0) == (0, 0)


def test_a_number_is_no_estimate() -> None:
    assert UsageReader("m").count(7, 10) == (7, 0)


PROMPT, ANSWER = Prompt("why " * 100, system="be brief " * 10), "because " * 50


def _of_chat(usage: Any) -> Reply:
    choice = {"message": {"content": ANSWER}, "finish_reason": "stop"}
    return chat_reply({"choices": [choice], "usage": usage}, b"", PROMPT, "m", UsageReader("m"))


def _of_gemini(usage: Any) -> Reply:
    candidate = {"content": {"parts": [{"text": ANSWER}]}, "finishReason": "STOP"}
    return gemini_reply({"candidates": [candidate], "usageMetadata": usage}, PROMPT, "m", UsageReader("m"))


def _of_prediction(usage: Any) -> Reply:
    return prediction_reply({"text": ANSWER, "usage": usage}, PROMPT.text, "m", UsageReader("m"))


ABSENT = [
    None,
    {},
    [],
    "12",
    *({"prompt_tokens": each, "completion_tokens": each, "total_tokens": each} for each in (None, 0)),
    *({"promptTokenCount": each, "candidatesTokenCount": each, "thoughtsTokenCount": 0} for each in (None, 0)),
]


@pytest.mark.parametrize("read", [_of_chat, _of_gemini, _of_prediction])
@pytest.mark.parametrize("usage", ABSENT, ids=str)
def test_a_reply_without_usage_is_billed_by_its_length_and_marked(
    read: Callable[[Any], Reply], usage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reply = read(usage)
    assert 100 <= reply.tokens.input <= 130
    assert reply.tokens.output == 100
    assert reply.tokens.estimated == reply.tokens.input + reply.tokens.output
    (message,) = caplog.messages
    assert message.startswith("Model 'm' reports no usage of tokens. ")


@pytest.mark.parametrize("read", [_of_chat, _of_gemini, _of_prediction])
def test_a_reply_with_usage_has_no_estimate(read: Callable[[Any], Reply]) -> None:
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "promptTokenCount", "candidatesTokenCount"), 3)
    reply = read(usage)
    assert (reply.tokens.input, reply.tokens.output, reply.tokens.estimated) == (3, 3, 0)


def test_unbelievable_usage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with caplog.at_level(logging.WARNING):
        reader = UsageReader("gemma")
        for reported in (None, 5, deep, *UNBELIEVABLE):
            reader.tokens(reported)
    (message,) = caplog.messages
    assert message.startswith("Model 'gemma' reports a number of tokens that cannot be true: list. Expected")


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("gemma-3", "gemma-3"),
        (" gemma\n", "gemma"),
        ("", "m"),
        (" ", "m"),
        ("\x00\x1b[31mred\u202e", "[31mred"),
        ("cut \ud83d", "cut \ufffd"),
        ("g" * 200, "g" * 128),
        (None, "m"),
        (5, "m"),
        (["gemma"], "m"),
    ],
)
def test_a_name_is_short_and_printable(reported: Any, name: str) -> None:
    assert name_of(reported, "m") == name


@pytest.mark.parametrize(
    ("reported", "reason"),
    [("stop", "stop"), (None, "stop"), ("", "stop"), (5, "unknown"), ({}, "unknown"), (["a"], "unknown")],
)
def test_a_finish_reason_is_a_name(reported: Any, reason: str) -> None:
    assert finish_reason_of(reported) == reason


ENDPOINT = VertexEndpointModel(
    type="vertex_endpoint", name="m", endpoint="projects/p/locations/europe-west4/endpoints/1"
)
#: Kind of failure by what stands for a code in a body.
CODES = {
    429: "throttled",
    "429": "throttled",
    "RESOURCE_EXHAUSTED": "throttled",
    "rate_limit_exceeded": "throttled",
    401: "unauthorized",
    "invalid_api_key": "unauthorized",
    404: "not_found",
    400: "bad_request",
    "invalid_request_error": "bad_request",
    502: "server_error",
    None: "server_error",
    "new": "server_error",
    True: "server_error",
}
SHAPES: list[Callable[[Any], Any]] = [
    lambda error: {"error": error},
    lambda error: {"error": error, "choices": [{"message": {"content": None}}]},
    lambda error: {"choices": [{"error": error, "finish_reason": "error", "message": {"content": "The con"}}]},
    lambda error: {"object": "error", **error},
]


@pytest.mark.parametrize("error_of", [gemini_error, chat_error, partial(vertex_error, ENDPOINT)])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("code", CODES, ids=str)
def test_an_error_in_a_body_is_that_of_the_status_it_names(error_of: ErrorOf, shape: Any, code: Any) -> None:
    body = shape({"message": "upstream said no", "code": code})
    with pytest.raises(RequestError, match="upstream said no") as caught:
        json_object(json.dumps(body).encode(), "no answer", error_of, {"retry-after": "7"})
    assert caught.value.kind == CODES[code]
    assert caught.value.retry_after_seconds == 7 or caught.value.kind == "not_found"


@pytest.mark.parametrize("error", [None, {}, "", [], False])
def test_an_empty_error_is_none(error: Any) -> None:
    body = {"choices": [{"message": {"content": "Hi."}, "error": error}], "error": error, "code": 429}
    assert json_object(json.dumps(body).encode(), "no answer", chat_error) == body


def test_a_text_is_an_error() -> None:
    with pytest.raises(RequestError, match="out of memory"):
        json_object(b'{"error": "out of memory"}', "no answer", chat_error)


def test_the_tokens_beside_an_error_in_a_200_are_billed() -> None:
    choice = {"finish_reason": "error", "error": {"code": 502, "message": "no"}, "message": {"content": None}}
    body = {"choices": [choice], "usage": {"prompt_tokens": 1000, "completion_tokens": 5000}}
    with pytest.raises(RequestError) as caught:
        json_object(json.dumps(body).encode(), "no answer", chat_error)
    assert (caught.value.http_status, caught.value.tokens.input, caught.value.tokens.output) == (502, 1000, 5000)
