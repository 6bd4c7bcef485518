from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmbeam_sandbox.batch_inference.lines import padded

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.batch_format import BatchFormat, batch_format
from airflow_provider_llmbeam.providers.gemini.batch_format import DeveloperFormat
from airflow_provider_llmbeam.providers.gemini.client import generation_config
from airflow_provider_llmbeam.spec import EchoModel, Embedding, GeminiModel, Generation, Model, OpenAIModel
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
    assert (found.result.text, found.result.tokens.input, found.result.tokens.output) == ("Paris", 7, 1)


@pytest.mark.parametrize(
    ("model", "failed", "kind", "message"),
    [
        (VERTEX, {"request": {"contents": []}, "status": "Internal error", "response": {}}, "server_error", "Int"),
        (VERTEX, {"request": {"contents": []}, "status": {"code": 8, "message": "x"}}, "throttled", "x"),
        (VERTEX, {"request": {"contents": []}, "status": "", "response": {}}, "garbage", "neither"),
        (DEVELOPER, {"key": "f", "error": {"code": 400, "message": "Too long"}}, "bad_request", "Too long"),
        (DEVELOPER, {"key": "f", "error": {"code": 13, "message": "Internal"}}, "server_error", "Internal"),
        (DEVELOPER, {"key": "f", "response": None}, "garbage", "neither"),
        (DEVELOPER, {"key": "f", "response": {"error": {"code": 401, "message": "No"}}}, "unauthorized", "No"),
        (
            OPENAI,
            {"custom_id": "f", "response": {"status_code": 200, "body": {"error": {"code": 429, "message": "x"}}}},
            "throttled",
            "x",
        ),
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


RESULTS = (
    (
        VERTEX,
        {"request": request_of(format_of(VERTEX).encode("f", Prompt("?", "S"))[1]), "response": GEMINI_ANSWER},
    ),
    (DEVELOPER, {"key": "f", "response": GEMINI_ANSWER, "error": {"code": 5, "message": "m"}}),
    (OPENAI, {"custom_id": "f", "response": {"status_code": 200, "body": CHAT_ANSWER}, "error": {"message": "m"}}),
)


@pytest.mark.fuzz
@pytest.mark.parametrize(("model", "whole"), RESULTS)
@given(data=st.data())
def test_whatever_a_line_holds_it_is_a_result_or_none(model, whole, data) -> None:
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


DEVELOPER_VECTORS = GeminiModel(name="gemini-embedding-001")
OPENAI_VECTORS = OpenAIModel(type="openai", name="text-embedding-3-small")
VECTOR = [0.1, -0.2]


def embedding_format_of(model: Model, **embedding: Any) -> BatchFormat:
    return batch_format(model, Generation(), None, Embedding(**embedding))


def embedded(vector: Any, tokens: Any = 7) -> dict[str, Any]:
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    item = {"object": "embedding", "index": 0, "embedding": vector}
    return {"object": "list", "data": [item], "model": "text-embedding-3-small", "usage": usage}


def openai_vectors(body: Any) -> dict[str, Any]:
    return {"custom_id": "f", "response": {"status_code": 200, "body": body}, "error": None}


def test_a_text_to_embed_is_one_line_of_openai() -> None:
    key, encoded = embedding_format_of(OPENAI_VECTORS, dimensions=2).encode("f", Prompt("Hi"))
    assert (key, json.loads(encoded)) == (
        "f",
        {
            "custom_id": "f",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {
                "model": "text-embedding-3-small",
                "encoding_format": "float",
                "dimensions": 2,
                "input": "Hi",
            },
        },
    )


def test_a_text_to_embed_is_one_line_of_the_developer_api() -> None:
    form = embedding_format_of(DEVELOPER_VECTORS, dimensions=2, task_type="RETRIEVAL_DOCUMENT")
    assert json.loads(form.encode("f", Prompt("Hi"))[1]) == {
        "key": "f",
        "request": {
            "content": {"parts": [{"text": "Hi"}]},
            "taskType": "RETRIEVAL_DOCUMENT",
            "outputDimensionality": 2,
        },
    }
    plain = embedding_format_of(DEVELOPER_VECTORS).encode("f", Prompt("Hi"))[1]
    assert request_of(plain) == {"content": {"parts": [{"text": "Hi"}]}}


@pytest.mark.parametrize(
    ("model", "answered", "tokens"),
    [
        (OPENAI_VECTORS, openai_vectors(embedded(VECTOR)), 7),
        (OPENAI_VECTORS, openai_vectors(embedded(VECTOR, None)), 0),
        (OPENAI_VECTORS, openai_vectors(embedded(VECTOR, -3)), 0),
        (DEVELOPER_VECTORS, {"embedding": {"values": VECTOR}, "tokenCount": 7}, 7),
        (DEVELOPER_VECTORS, {"embedding": {"values": VECTOR}, "tokenCount": "7"}, 7),
        (DEVELOPER_VECTORS, {"embedding": {"values": VECTOR}, "tokenCount": "9" * 5000}, 0),
        (DEVELOPER_VECTORS, {"embedding": {"values": VECTOR}, "usageMetadata": {"promptTokenCount": 7}}, 7),
        (DEVELOPER_VECTORS, {"embedding": {"values": VECTOR}}, 0),
    ],
)
def test_a_vector_has_its_tokens_or_none_if_the_provider_reports_none(model, answered, tokens) -> None:
    whole = answered if model is OPENAI_VECTORS else {"key": "f", "response": answered}
    found = embedding_format_of(model).decode(line(whole))
    assert found.key == "f"
    assert isinstance(found.result, Reply)
    assert found.result.vector == VECTOR
    assert (found.result.text, found.result.model) == ("", model.name)
    assert (found.result.tokens.input, found.result.tokens.output) == (tokens, 0)


@pytest.mark.parametrize(
    ("model", "failed", "kind", "message"),
    [
        (DEVELOPER_VECTORS, {"key": "f", "error": {"code": 400, "message": "Empty"}}, "bad_request", "Empty"),
        (DEVELOPER_VECTORS, {"key": "f", "response": {}}, "garbage", "no answer to these texts"),
        (DEVELOPER_VECTORS, {"key": "f", "response": {"error": {"message": "x"}}}, "garbage", "x"),
        (DEVELOPER_VECTORS, {"key": "f", "response": {"embedding": {"values": []}}}, "garbage", "no answer"),
        (OPENAI_VECTORS, openai_vectors({}), "garbage", "no answer to these texts"),
        (OPENAI_VECTORS, openai_vectors({"data": [{"index": 1, "embedding": VECTOR}]}), "garbage", "no answer"),
        (OPENAI_VECTORS, {"custom_id": "f", "response": {"status_code": 400, "body": {}}}, "bad_request", ""),
    ],
)
def test_a_text_without_a_vector_has_failed(model, failed, kind, message) -> None:
    found = embedding_format_of(model).decode(line(failed)).result
    assert isinstance(found, RequestError)
    assert found.kind == kind
    assert message in found.message


VECTOR_RESULTS = (
    (DEVELOPER_VECTORS, {"key": "f", "response": {"embedding": {"values": VECTOR}, "tokenCount": 7}}),
    (OPENAI_VECTORS, openai_vectors(embedded(VECTOR))),
)


@pytest.mark.fuzz
@pytest.mark.parametrize(("model", "whole"), VECTOR_RESULTS)
@given(data=st.data())
def test_whatever_a_line_of_vectors_holds_it_is_a_result_or_none(model, whole, data) -> None:
    content = encoded(data.draw(altered(whole, {**whole, "error": {"code": 5, "message": "m"}})))
    try:
        found = embedding_format_of(model).decode(content)
    except ValueError:
        return
    assert isinstance(found.result, Reply | RequestError)


@pytest.mark.parametrize("model", [EchoModel(type="echo"), GeminiModel(name="gemini-embedding-001", project="p")])
def test_embeddings_without_batch_inference_are_refused(model) -> None:
    with pytest.raises(
        JobSpecError, match=f"no provider has batch inference for embeddings of model {model.name!r}"
    ):
        embedding_format_of(model)


def test_a_model_without_batch_inference_is_refused() -> None:
    with pytest.raises(JobSpecError, match="no provider has batch inference for a model of type 'echo'"):
        format_of(EchoModel(type="echo"))


def test_the_nulls_of_what_a_part_does_not_have_change_no_key() -> None:
    """As in the example of Vertex AI's documentation of batch inference from Cloud Storage."""
    form = format_of(VERTEX)
    for prompt in (Prompt("What?", "Be brief.", media=(("gs://b/a", "image/png"),)), Prompt("What?")):
        key, sent = form.encode("f", prompt)
        request = request_of(sent)
        for content in (*request["contents"], request.get("systemInstruction") or {}):
            content["parts"] = [
                {"fileData": None, "inlineData": None, "text": None} | part for part in content.get("parts", ())
            ]
        request = {"cachedContent": None, "systemInstruction": None, "tools": None} | request
        assert form.decode(line({"request": request, "response": GEMINI_ANSWER})).key == key


def test_what_the_sandbox_echoes_has_the_key_of_its_request() -> None:
    form = format_of(VERTEX)
    key, sent = form.encode("f", Prompt("What?", "Be brief.", media=(("gs://b/a", "image/png"),)))
    echoed = padded(request_of(sent))
    assert {"fileData": None, "text": "What?"} in echoed["contents"][0]["parts"]
    assert form.decode(line({"request": echoed, "response": GEMINI_ANSWER})).key == key


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        ({"type": "integer", "enum": [1, 2]}, {"type": "INTEGER", "description": "One of 1, 2."}),
        ({"type": "string", "enum": ["a", "b"]}, {"type": "STRING", "enum": ["a", "b"]}),
    ],
)
def test_the_pilot_and_the_batch_send_the_same_schema_which_the_api_takes(part, sent) -> None:
    schema = {"type": "object", "properties": {"a": part, "b": {"type": "array", "items": part}}}
    config = generation_config(Generation(), schema, as_batch=True)
    assert "responseJsonSchema" not in config
    assert config["responseSchema"]["properties"] == {"a": sent, "b": {"type": "ARRAY", "items": sent}}
    _, line = DeveloperFormat(DEVELOPER, Generation(), schema).encode("f", Prompt("a"))
    assert json.loads(line)["request"]["generationConfig"] == config


@pytest.mark.parametrize("part", [{"type": "object"}, {"type": "array"}, {"$ref": "#"}], ids=str)
def test_a_schema_that_no_openapi_schema_has_is_sent_as_it_is_by_both(part) -> None:
    schema = {"type": "object", "properties": {"a": part}}
    assert generation_config(Generation(), schema, as_batch=True)["responseJsonSchema"] == schema
