"""The APIs of Gemini (Developer API), OpenAI and Anthropic, by the types of their clients, as JSON Schema.

There is no Discovery document of the Gemini Developer API in google-api-python-client: its messages are those of
google-genai, whose converters (`google/genai/batches.py`) say what differs on the wire.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_OF_THE_CLIENT = ("sdkHttpResponse", "automaticFunctionCallingHistory", "parsed")
_OPERATION_STATE = (
    "BATCH_STATE_PENDING",
    "BATCH_STATE_RUNNING",
    "BATCH_STATE_SUCCEEDED",
    "BATCH_STATE_FAILED",
    "BATCH_STATE_CANCELLED",
    "BATCH_STATE_EXPIRED",
)
_TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$"}
_TEXT, _COUNT, _ANY = {"type": "string"}, {"type": "string", "pattern": r"^\d+$"}, {}
_DURATION = {"type": "string", "pattern": r"^\d+(\.\d{1,9})?s$"}


def _message(required: str = "", **properties: Any) -> dict[str, Any]:
    made = {"type": "object", "properties": properties, "additionalProperties": False}
    return made | ({"required": required.split()} if required else {})


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _gemini(name: str) -> dict[str, str]:
    return {"$ref": f"gemini:{name}"}


def _openai(name: str) -> dict[str, str]:
    return {"$ref": f"openai:{name}"}


def _anthropic(name: str) -> dict[str, str]:
    return {"$ref": f"anthropic:{name}"}


def _page(name: str) -> dict[str, Any]:
    return _message(
        "object data",
        object={"const": "list"},
        data=_list(_openai(name)),
        has_more={"type": "boolean"},
        first_id={"type": ["string", "null"]},
        last_id={"type": ["string", "null"]},
    )


_GENERATE = _message(
    "contents",
    model=_TEXT,
    contents=_list(_gemini("Content")),
    systemInstruction=_gemini("Content"),
    generationConfig=_gemini("GenerationConfig"),
    safetySettings=_list(_gemini("SafetySetting")),
    tools=_list(_gemini("Tool")),
    toolConfig=_gemini("ToolConfig"),
    cachedContent=_TEXT,
    serviceTier={"enum": ["flex", "standard", "priority"]},
)
_EMBED = _message(
    "content",
    model=_TEXT,
    content=_gemini("Content"),
    taskType=_TEXT,
    title=_TEXT,
    outputDimensionality={"type": "integer"},
)
_EMBEDDING = _message("values", values=_list({"type": "number"}))
_CACHE = _message(
    "model",
    model=_TEXT,
    displayName=_TEXT,
    contents=_list(_gemini("Content")),
    systemInstruction=_gemini("Content"),
    tools=_list(_gemini("Tool")),
    toolConfig=_gemini("ToolConfig"),
    ttl=_DURATION,
    expireTime=_TIME,
)
_STATUS = _message(code={"type": "integer"}, message=_TEXT, status=_TEXT, details=_list({"type": "object"}))
_OUTCOMES = _message(
    inlinedResponses=_list(
        _message(response=_gemini("GenerateContentResponse"), error=_STATUS, metadata={"type": "object"})
    )
)
_EMBEDDINGS = _message(
    inlinedResponses=_list(
        _message(
            response=_message(embedding=_EMBEDDING, tokenCount=_COUNT, usageMetadata={"type": "object"}),
            error=_STATUS,
            metadata={"type": "object"},
        )
    )
)
_OUTPUT = {
    "@type": _TEXT,
    "responsesFile": _TEXT,
    "inlinedResponses": _OUTCOMES,
    "inlinedEmbedContentResponses": _EMBEDDINGS,
}
# Source: `_BatchJob_from_mldev` of google-genai; `batchStats` and `inputConfig` are those of the API's reference,
# https://ai.google.dev/api/batch-api#GenerateContentBatch.
_BATCH = _message(
    "name metadata",
    name={"type": "string", "pattern": "^batches/[^/]+$"},
    metadata=_message(
        "state model",
        **{"@type": _TEXT, "model": _TEXT, "displayName": _TEXT, "name": _TEXT, "priority": _COUNT},
        state={"enum": list(_OPERATION_STATE)},
        createTime=_TIME,
        endTime=_TIME,
        updateTime=_TIME,
        inputConfig=_message(fileName=_TEXT, requests={"type": "object"}),
        output={"type": "object", "properties": _OUTPUT, "additionalProperties": False},
        batchStats=_message(
            requestCount=_COUNT,
            successfulRequestCount=_COUNT,
            failedRequestCount=_COUNT,
            pendingRequestCount=_COUNT,
        ),
    ),
    done={"type": "boolean"},
    response={"type": "object", "properties": _OUTPUT, "additionalProperties": False},
    error=_STATUS,
)
_ROWS = _message("requests", requests=_list(_message("request", request=_ANY, metadata={"type": "object"})))
_CREATE_BATCH = _message(
    "batch",
    batch=_message(
        "inputConfig",
        displayName=_TEXT,
        priority=_COUNT,
        model=_TEXT,
        inputConfig={
            **_message(fileName={"type": "string", "pattern": "^files/"}, requests=_ROWS),
            "oneOf": [{"required": ["fileName"]}, {"required": ["requests"]}],
        },
    ),
)
_FILE = _gemini("File")
_VERSION = r"/(?:v1beta|v1alpha)"
_MODEL = r"/(?:v1|v1beta|v1alpha)/models/[^/:]+"
_CHAT = {"if": {"properties": {"stream": {"const": True}}, "required": ["stream"]}}
_CHAT |= {"then": _openai("chat_stream"), "else": _openai("chat")}
_CREATE = {**_CHAT, "then": _anthropic("stream"), "else": _anthropic("create")}
# OpenAI and Anthropic list their models at the same path of two hosts.
_MODELS = {"if": {"required": ["object"]}, "then": _page("Model"), "else": _anthropic("SyncPage")}
_EMPTY = _message()
_OPEN_CHAT = r".+/chat/completions"

METHODS: tuple[tuple[str, str, re.Pattern[str], Any, Any], ...] = tuple(
    (name, verb, re.compile(path), request, reply)
    for name, verb, path, request, reply in (
        (
            "gemini.generateContent",
            "POST",
            f"{_MODEL}:generateContent",
            _GENERATE,
            _gemini("GenerateContentResponse"),
        ),
        (
            "gemini.streamGenerateContent",
            "POST",
            f"{_MODEL}:streamGenerateContent",
            _GENERATE,
            _gemini("GenerateContentResponse"),
        ),
        (
            "gemini.countTokens",
            "POST",
            f"{_MODEL}:countTokens",
            _message(contents=_list(_gemini("Content")), generateContentRequest=_GENERATE),
            _gemini("CountTokensResponse"),
        ),
        (
            "gemini.models.list",
            "GET",
            f"{_VERSION}/models",
            None,
            _message(models=_list(_gemini("Model")), nextPageToken=_TEXT),
        ),
        (
            "gemini.embedContent",
            "POST",
            f"{_MODEL}:embedContent",
            _EMBED,
            _message("embedding", embedding=_EMBEDDING),
        ),
        (
            "gemini.batchEmbedContents",
            "POST",
            f"{_MODEL}:batchEmbedContents",
            _message("requests", requests=_list(_EMBED)),
            _message("embeddings", embeddings=_list(_EMBEDDING)),
        ),
        (
            "gemini.batches.create",
            "POST",
            f"{_MODEL}:(?:batchGenerateContent|asyncBatchEmbedContent)",
            _CREATE_BATCH,
            _BATCH,
        ),
        (
            "gemini.batches.list",
            "GET",
            f"{_VERSION}/batches",
            None,
            _message(operations=_list(_BATCH), nextPageToken=_TEXT),
        ),
        ("gemini.batches.cancel", "POST", f"{_VERSION}/batches/[^/:]+:cancel", _EMPTY, _EMPTY),
        ("gemini.batches.get", "GET", f"{_VERSION}/batches/[^/:]+", None, _BATCH),
        ("gemini.batches.delete", "DELETE", f"{_VERSION}/batches/[^/:]+", None, _EMPTY),
        ("gemini.caches.create", "POST", f"{_VERSION}/cachedContents", _CACHE, _gemini("CachedContent")),
        (
            "gemini.caches.list",
            "GET",
            f"{_VERSION}/cachedContents",
            None,
            _message(cachedContents=_list(_gemini("CachedContent")), nextPageToken=_TEXT),
        ),
        ("gemini.caches.get", "GET", f"{_VERSION}/cachedContents/[^/]+", None, _gemini("CachedContent")),
        (
            "gemini.caches.patch",
            "PATCH",
            f"{_VERSION}/cachedContents/[^/]+",
            _message(ttl=_DURATION, expireTime=_TIME),
            _gemini("CachedContent"),
        ),
        ("gemini.caches.delete", "DELETE", f"{_VERSION}/cachedContents/[^/]+", None, _EMPTY),
        ("gemini.files.upload", "POST", f"/upload{_VERSION}/files", _message(file=_FILE), _message(file=_FILE)),
        ("gemini.files.list", "GET", f"{_VERSION}/files", None, _message(files=_list(_FILE), nextPageToken=_TEXT)),
        ("gemini.files.get", "GET", f"{_VERSION}/files/[^/:]+", None, _FILE),
        ("gemini.files.delete", "DELETE", f"{_VERSION}/files/[^/:]+", None, _EMPTY),
        ("gemini.files.download", "GET", f"(?:/download)?{_VERSION}/files/[^/:]+:download", None, None),
        ("openai.chatCompletions", "POST", _OPEN_CHAT, _CHAT, _openai("ChatCompletion")),
        ("openai.completions", "POST", "/v1/completions", _ANY, _openai("Completion")),
        ("openai.embeddings", "POST", "/v1/embeddings", _openai("embedding"), _openai("CreateEmbeddingResponse")),
        ("openai.models", "GET", "/v1/models", None, _MODELS),
        ("anthropic.messages", "POST", "/v1/messages", _CREATE, _anthropic("Message")),
        (
            "anthropic.batches.create",
            "POST",
            "/v1/messages/batches",
            _anthropic("batch"),
            _anthropic("MessageBatch"),
        ),
        ("anthropic.batches.list", "GET", "/v1/messages/batches", None, _anthropic("SyncPage[MessageBatch]")),
        ("anthropic.batches.results", "GET", "/v1/messages/batches/[^/]+/results", None, None),
        (
            "anthropic.batches.cancel",
            "POST",
            "/v1/messages/batches/[^/]+/cancel",
            None,
            _anthropic("MessageBatch"),
        ),
        ("anthropic.batches.get", "GET", "/v1/messages/batches/[^/]+", None, _anthropic("MessageBatch")),
        (
            "anthropic.batches.delete",
            "DELETE",
            "/v1/messages/batches/[^/]+",
            None,
            _anthropic("DeletedMessageBatch"),
        ),
        ("openai.files.create", "POST", "/v1/files", None, _openai("FileObject")),
        ("openai.files.list", "GET", "/v1/files", None, _page("FileObject")),
        ("openai.files.content", "GET", "/v1/files/[^/]+/content", None, None),
        ("openai.files.get", "GET", "/v1/files/[^/]+", None, _openai("FileObject")),
        ("openai.files.delete", "DELETE", "/v1/files/[^/]+", None, _openai("FileDeleted")),
        ("openai.batches.create", "POST", "/v1/batches", _openai("batch"), _openai("Batch")),
        ("openai.batches.list", "GET", "/v1/batches", None, _page("Batch")),
        ("openai.batches.get", "GET", "/v1/batches/[^/]+", None, _openai("Batch")),
        ("openai.batches.cancel", "POST", "/v1/batches/[^/]+/cancel", None, _openai("Batch")),
    )
)
"""Name, verb and path of each method, and the schemas of its request and reply; None is not checked."""
CHUNKS = {
    "openai.chatCompletions": _openai("ChatCompletionChunk"),
    "anthropic.messages": _anthropic("RawMessageStreamEvent"),
}
"""Schemas of the chunks of streams, where they are not those of the reply."""
ANTHROPIC_ERROR = _anthropic("ErrorResponse")


@cache
def schema(address: str) -> dict[str, Any]:
    """Returns the schema of an address as in `_gemini`, `_openai` and `_anthropic`."""
    api, _, name = address.partition(":")
    return {"gemini": _gemini_schema, "openai": _openai_schema, "anthropic": _anthropic_schema}[api](name)


def _gemini_schema(name: str) -> dict[str, Any]:
    from google.genai import types

    made = getattr(types, name).model_json_schema(by_alias=True)
    for field in _OF_THE_CLIENT:
        made["properties"].pop(field, None)
    return _without_null(made)


def _openai_schema(name: str) -> dict[str, Any]:
    from openai import types
    from openai.types import batch_create_params, chat, embedding_create_params
    from openai.types.chat import completion_create_params as completion
    from pydantic import TypeAdapter

    requests = {
        "chat": completion.CompletionCreateParamsNonStreaming,
        "chat_stream": completion.CompletionCreateParamsStreaming,
        "embedding": embedding_create_params.EmbeddingCreateParams,
        "batch": batch_create_params.BatchCreateParams,
    }
    made = requests.get(name) or getattr(chat, name, None) or getattr(types, name)
    return _closed(TypeAdapter(made).json_schema())


def _anthropic_schema(name: str) -> dict[str, Any]:
    from anthropic import types
    from anthropic.pagination import SyncPage
    from anthropic.types import message_create_params as create
    from pydantic import TypeAdapter

    made: Any = {
        "create": create.MessageCreateParamsNonStreaming,
        "stream": create.MessageCreateParamsStreaming,
        "SyncPage": SyncPage[types.ModelInfo],
        "SyncPage[MessageBatch]": SyncPage[types.messages.MessageBatch],
        "batch": types.messages.BatchCreateParams,
    }.get(name)
    made = made or next(
        getattr(place, name) for place in (types, types.messages, types.shared) if hasattr(place, name)
    )
    return _closed(TypeAdapter(made).json_schema())


def _without_null(schema: Any) -> Any:
    """Returns a schema of google-genai without null, which the JSON of protobuf messages has nowhere."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _without_null(value) for key, value in schema.items() if key != "default"}
    options = made.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest = [option for option in options if option != {"type": "null"}]
        made = rest[0] if len(rest) == 1 else {**made, "anyOf": rest}
    return made


def _closed(schema: Any) -> Any:
    """Returns a schema of openai's types, each of whose messages has no fields but its own."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _closed(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made["additionalProperties"] = False
    return made
