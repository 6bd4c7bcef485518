"""The checker sees planted errors: each is one change of an exchange that is right."""

from __future__ import annotations

import json
from dataclasses import replace

import httpx
import pytest

from tests.contract import plugin
from tests.contract.checker import Checker
from tests.contract.deviations import DEVIATIONS
from tests.contract.exchanges import Exchange

pytestmark = pytest.mark.promise(5)

JSON = "application/json"
PARENT = "projects/p/locations/europe-west4"
OPERATION = "type.googleapis.com/google.cloud.aiplatform.v1.DeployModelOperationMetadata"
GENERATED = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "generationConfig": {"maxOutputTokens": 9}}
ANSWER = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP", "index": 0}]
}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
COMPLETION = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
ERROR = {
    "error": {
        "code": 429,
        "message": "Resource has been exhausted.",
        "status": "RESOURCE_EXHAUSTED",
        "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"}],
    }
}


def exchange(path, request, reply, *, verb="POST", http_status=200, query=()):
    return Exchange(
        verb=verb,
        path=path,
        query=query,
        content_type=JSON,
        request=b"" if request is None else json.dumps(request).encode(),
        http_status=http_status,
        reply_type=JSON,
        reply=json.dumps(reply).encode(),
    )


RIGHT = {
    "gemini": exchange("/v1beta/models/gemini-2.5-flash:generateContent", GENERATED, ANSWER),
    "vertex": exchange(
        f"/v1/{PARENT}/publishers/google/models/gemini-2.5-flash:generateContent", GENERATED, ANSWER
    ),
    "openai": exchange("/v1/chat/completions", CHAT, COMPLETION),
    "refusal": exchange("/v1beta/models/gemini-2.5-flash:generateContent", GENERATED, ERROR, http_status=429),
    "openai-refusal": exchange(
        "/v1/chat/completions",
        CHAT,
        {"error": {"message": "Slow down.", "type": "requests", "param": None, "code": "rate_limit_exceeded"}},
        http_status=429,
    ),
    "endpoint": exchange(
        f"/v1/{PARENT}/endpoints",
        {"displayName": "e", "labels": {"llmbeam": "x"}},
        {"name": f"{PARENT}/operations/1", "metadata": {"@type": OPERATION}},
        query=(("endpointId", "e-1"),),
    ),
    "operation": exchange(
        f"/v1/{PARENT}/operations/1",
        None,
        {
            "name": f"{PARENT}/operations/1",
            "done": True,
            "response": {"@type": "type.googleapis.com/google.cloud.aiplatform.v1.Endpoint", "displayName": "e"},
        },
        verb="GET",
    ),
    "service": exchange(
        f"/v2/{PARENT}/services/s",
        {"template": {"timeout": "300s", "containers": [{"image": "i"}]}},
        {"name": f"{PARENT}/operations/2"},
        verb="PATCH",
        query=(("updateMask", "template.timeout,template.containers"),),
    ),
    "object": exchange(
        "/storage/v1/b/rows/o/a", None, {"kind": "storage#object", "name": "a", "size": "12"}, verb="GET"
    ),
    "job": exchange(f"/v1b3/{PARENT}/jobs/j", None, {"id": "j", "currentState": "JOB_STATE_RUNNING"}, verb="GET"),
}
PLANTED = {
    "a misspelt field of a request": (
        "gemini",
        "request",
        b"maxOutputTokens",
        b"maxOutputTokns",
        "maxOutputTokns",
    ),
    "a misspelt field on Vertex AI": (
        "vertex",
        "request",
        b"maxOutputTokens",
        b"maxOutputTokns",
        "maxOutputTokns",
    ),
    "a misspelt field of a reply": ("gemini", "reply", b"finishReason", b"finishReazon", "finishReazon"),
    "a misspelt field for OpenAI": ("openai", "request", b"max_tokens", b"max_tokns", "max_tokns"),
    "a missing field of OpenAI": ("openai", "reply", b'"created": 1, ', b"", "'created' is a required property"),
    "a wrong enum": ("gemini", "reply", b'"STOP"', b'"STOPPED"', "'STOPPED' is not one of"),
    "a wrong enum on Vertex AI": ("vertex", "reply", b'"STOP"', b'"STOPPED"', "'STOPPED' is not one of"),
    "a wrong enum of OpenAI": ("openai", "reply", b'"stop"', b'"stopped"', "'stopped' is not one of"),
    "a wrong state": ("job", "reply", b"JOB_STATE_RUNNING", b"RUNNING", "'RUNNING' is not one of"),
    "a wrong type": ("gemini", "request", b": 9", b': "9"', "'9' is not of type 'integer'"),
    "a missing operation name": (
        "endpoint",
        "reply",
        f'"name": "{PARENT}/operations/1", '.encode(),
        b"",
        "'name' is a required property",
    ),
    "a finished operation without a result": (
        "operation",
        "reply",
        b'"response"',
        b'"metadata"',
        "is not valid under",
    ),
    "a result of a running operation": ("operation", "reply", b'"done": true, ', b"", "should not be valid under"),
    "a misspelt field of a result": ("operation", "reply", b"displayName", b"displayname", "displayname"),
    "a result of an unknown type": ("operation", "reply", b"v1.Endpoint", b"v1.EndPoint", "EndPoint"),
    "a wrong error class": ("refusal", "reply", b"RESOURCE_EXHAUSTED", b"PERMISSION_DENIED", "PERMISSION_DENIED"),
    "a wrong error class of OpenAI": ("openai-refusal", "reply", b'"requests"', b'"server_error"', "server_error"),
    "another code than that of HTTP": ("refusal", "reply", b"429", b"503", "503 of a reply with HTTP 429"),
    "a misspelt detail of an error": ("refusal", "reply", b"retryDelay", b"retryDelays", "retryDelays"),
    "a duration that is a number": ("refusal", "reply", b'"1s"', b"1", "retryDelay"),
    "a duration without its unit": ("service", "request", b'"300s"', b'"300"', "does not match"),
    "an int64 that is a number": ("object", "reply", b'"12"', b"12", "12 is not of type 'string'"),
    "a field that is output only": ("endpoint", "request", b"{", b'{"createTime": "x", ', "is output only"),
    "a field that is deprecated": (
        "endpoint",
        "request",
        b"{",
        b'{"enablePrivateServiceConnect": true, ',
        "is deprecated",
    ),
    "a label in capitals": ("endpoint", "request", b'"x"', b'"X"', "labels"),
}


def faults_of(exchange):
    return Checker().check(exchange)


@pytest.mark.parametrize("exchange", RIGHT.values(), ids=RIGHT)
def test_what_is_right_passes(exchange):
    assert faults_of(exchange) == []


@pytest.mark.parametrize(("right", "side", "old", "new", "expected"), PLANTED.values(), ids=PLANTED)
def test_a_planted_error_is_found(right, side, old, new, expected):
    body = getattr(RIGHT[right], side)
    assert old in body
    faults = faults_of(replace(RIGHT[right], **{side: body.replace(old, new, 1)}))
    assert expected in "\n".join(faults)


@pytest.mark.parametrize(
    ("right", "query", "expected"),
    [
        (
            "service",
            (("updateMask", "template.time out"),),
            "query.updateMask: 'template.time out' does not match",
        ),
        ("service", (("update_masks", "template"),), "query.update_masks: there is no such parameter"),
        ("endpoint", (("endpointId", "-e"),), "query.endpointId: '-e' does not match"),
    ],
    ids=["field mask", "parameter", "name"],
)
def test_a_planted_error_in_the_address_is_found(right, query, expected):
    assert expected in "\n".join(faults_of(replace(RIGHT[right], query=query)))


def test_a_method_that_no_service_has_is_found():
    (fault,) = faults_of(replace(RIGHT["endpoint"], path=f"/v1/{PARENT}/endpoints/1:deploy"))
    assert "is no method of a published definition" in fault


def test_a_stream_is_checked_event_by_event():
    chunk = json.dumps(ANSWER).encode()
    stream = replace(
        RIGHT["gemini"],
        path="/v1beta/models/gemini-2.5-flash:streamGenerateContent",
        reply_type="text/event-stream",
        reply=b"data: " + chunk + b"\r\n\r\ndata: " + chunk.replace(b"STOP", b"HALT") + b"\r\n\r\n",
    )
    (fault,) = faults_of(stream)
    assert "'HALT' is not one of" in fault


def test_messages_of_the_same_shape_are_validated_once():
    checker = Checker()
    for number in range(100):
        text = f"This is row {number}.".encode()
        checker.check(replace(RIGHT["vertex"], request=RIGHT["vertex"].request.replace(b"Hi", text)))
    assert (checker.exchanges, checker.validated) == (100, 2)


def test_an_error_is_found_after_a_right_message_of_the_same_fields():
    checker = Checker()
    assert checker.check(RIGHT["vertex"]) == []
    assert checker.check(replace(RIGHT["vertex"], reply=RIGHT["vertex"].reply.replace(b"STOP", b"HALT")))


def test_a_test_fails_whose_request_has_a_misspelt_field(sandbox):
    body = {**GENERATED, "generationConfig": {"maxOutputTokns": 9}}
    url = f"{sandbox.gemini_url}/v1beta/models/gemini-2.5-flash:generateContent"
    assert httpx.post(url, json=body, headers={"x-goog-api-key": "k"}).status_code == 200
    (fault,) = plugin.deviations()
    assert "1 × gemini.generateContent request.generationConfig" in fault
    assert "maxOutputTokns" in fault


def test_the_table_says_of_each_deviation_why():
    assert all(
        known.why.endswith(".") and known.right in ("ours", "definition", "unknown") for known in DEVIATIONS
    )
