from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.backends.base import Reply
from airflow_provider_llmbeam.engine.batch_formats import batch_format
from airflow_provider_llmbeam.engine.batch_formats.base import BatchFormat
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import EchoModel, GeminiModel, Generation, OpenAIModel
from tests.hostile import altered, encoded

VERTEX = GeminiModel(project="p")
DEVELOPER = GeminiModel()
OPENAI = OpenAIModel(type="openai", name="gpt-5-mini")
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["good", "bad"]}},
    "required": ["label"],
    "additionalProperties": False,
}
GEMINI_ANSWER = {
    "candidates": [{"content": {"parts": [{"text": "Paris"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 1},
    "modelVersion": "gemini-2.5-flash",
}
CHAT_ANSWER = {
    "choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 1},
    "model": "gpt-5-mini-2026",
}


def format_of(model: Any, schema: Any = None) -> BatchFormat:
    return batch_format(model, Generation(temperature=1.0), schema)


def line(value: Any) -> bytes:
    return json.dumps(value).encode()


def request_of(encoded: bytes) -> Any:
    return json.loads(encoded)["request"]


def reordered(value: Any, source: random.Random) -> Any:
    """Returns a value as a service may echo it: fields in another order, numbers in another format."""
    if isinstance(value, dict):
        items = [(name, reordered(inner, source)) for name, inner in value.items()]
        source.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [reordered(inner, source) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.fuzz
@given(text=st.text(), system=st.none() | st.text(min_size=1), seed=st.integers(0, 9))
def test_a_result_of_vertex_ai_is_joined_to_its_request_however_it_is_echoed(text, system, seed) -> None:
    form, prompt = format_of(VERTEX), Prompt(text, system)
    request = request_of(form.encode("f", prompt)[1])
    echoed = line({"request": reordered(request, random.Random(seed)), "response": GEMINI_ANSWER, "status": ""})
    assert form.decode(echoed).key == form.encode("f", prompt)[0]


@given(st.lists(st.text(), unique=True, min_size=2))
def test_different_prompts_have_different_keys(texts) -> None:
    form = format_of(VERTEX)
    assert len({form.encode("f", Prompt(text))[0] for text in texts}) == len(texts)
    assert form.encode("f", Prompt(texts[0], "S"))[0] != form.encode("f", Prompt(texts[0]))[0]


def test_the_keys_of_files_are_their_addresses() -> None:
    form = format_of(VERTEX)
    first, second = (Prompt("What?", media=((f"gs://b/{name}", "image/png"),)) for name in "ab")
    assert form.encode("f", first)[0] != form.encode("f", second)[0]
    echoed = line({"request": request_of(form.encode("f", first)[1]), "response": GEMINI_ANSWER})
    assert form.decode(echoed).key == form.encode("f", first)[0]


@pytest.mark.parametrize(
    ("model", "answered"),
    [
        (DEVELOPER, {"key": "f", "response": GEMINI_ANSWER}),
        (DEVELOPER, {"metadata": {"key": "f"}, "response": GEMINI_ANSWER}),
        (OPENAI, {"custom_id": "f", "response": {"status_code": 200, "body": CHAT_ANSWER}, "error": None}),
    ],
)
def test_an_answer_has_its_text_and_its_tokens(model, answered) -> None:
    found = format_of(model).decode(line(answered))
    assert found.key == "f"
    assert isinstance(found.result, Reply)
    assert (found.result.text, found.result.input_tokens, found.result.output_tokens) == ("Paris", 7, 1)


@pytest.mark.parametrize(
    ("model", "failed", "kind", "message"),
    [
        (VERTEX, {"request": {"contents": []}, "status": "Internal error", "response": {}}, "server_error", "Int"),
        (VERTEX, {"request": {"contents": []}, "status": {"code": 8, "message": "x"}}, "server_error", "x"),
        (VERTEX, {"request": {"contents": []}, "status": "", "response": {}}, "garbage", "neither"),
        (DEVELOPER, {"key": "f", "error": {"code": 400, "message": "Too long"}}, "bad_request", "Too long"),
        (DEVELOPER, {"key": "f", "error": {"code": 13, "message": "Internal"}}, "server_error", "Internal"),
        (DEVELOPER, {"key": "f", "response": None}, "garbage", "neither"),
        (OPENAI, {"custom_id": "f", "response": {"status_code": 0}}, "server_error", ""),
        (OPENAI, {"custom_id": "f", "response": {"status_code": 429, "body": {}}}, "throttled", ""),
        (OPENAI, {"custom_id": "f", "response": None, "error": {"message": "expired"}}, "server_error", "expired"),
        (OPENAI, {"custom_id": "f", "response": {"status_code": 200, "body": {}}}, "garbage", "no chat"),
    ],
)
def test_a_failed_row_has_the_message_of_the_provider(model, failed, kind, message) -> None:
    found = format_of(model).decode(line(failed)).result
    assert isinstance(found, RequestError)
    assert found.kind == kind
    assert message in found.message


@pytest.mark.parametrize("model", [VERTEX, DEVELOPER, OPENAI])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b'{"key": 7}', b'{"request": []}', b"\xff"])
def test_a_line_without_its_request_is_no_result(model, content) -> None:
    with pytest.raises(ValueError, match="it "):
        format_of(model).decode(content)


RESULTS = {
    VERTEX: {"request": request_of(format_of(VERTEX).encode("f", Prompt("?", "S"))[1]), "response": GEMINI_ANSWER},
    DEVELOPER: {"key": "f", "response": GEMINI_ANSWER, "error": {"code": 5, "message": "m"}},
    OPENAI: {"custom_id": "f", "response": {"status_code": 200, "body": CHAT_ANSWER}, "error": {"message": "m"}},
}


@pytest.mark.fuzz
@pytest.mark.parametrize("model", RESULTS)
@given(data=st.data())
def test_whatever_a_line_holds_it_is_a_result_or_none(model, data) -> None:
    whole = RESULTS[model]
    content = encoded(data.draw(altered(whole, {**whole, "error": None})))
    try:
        found = format_of(model).decode(content)
    except ValueError:
        return
    assert isinstance(found.result, Reply | RequestError)


def test_a_schema_is_sent_as_the_kind_that_batch_inference_obeys() -> None:
    config = request_of(format_of(VERTEX, SCHEMA).encode("f", Prompt("?"))[1])["generationConfig"]
    assert config["responseSchema"]["properties"]["label"]["enum"] == ["good", "bad"]
    assert config["responseMimeType"] == "application/json"
    assert "responseJsonSchema" not in config


@pytest.mark.parametrize("part", [{"$ref": "#/$defs/missing"}, {"type": "array", "uniqueItems": True}])
def test_a_schema_that_cannot_be_converted_is_sent_as_it_is(part, caplog) -> None:
    schema = {"type": "object", "properties": {"a": part}}
    config = request_of(format_of(VERTEX, schema).encode("f", Prompt("?"))[1])["generationConfig"]
    assert config["responseJsonSchema"] == schema
    assert "cannot be converted" in caplog.text


def test_a_request_of_openai_is_never_streamed() -> None:
    form = batch_format(OPENAI, Generation(stream=True), None)
    encoded = json.loads(form.encode("f", Prompt("Hi"))[1])
    assert (encoded["custom_id"], encoded["url"]) == ("f", "/v1/chat/completions")
    assert "stream" not in encoded["body"]


def test_a_model_without_batch_inference_is_refused() -> None:
    with pytest.raises(JobSpecError, match="no provider has batch inference for a model of type 'echo'"):
        format_of(EchoModel(type="echo"))
