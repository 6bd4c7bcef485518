"""The Messages API of Claude, on its own host and on Vertex AI.

Source: the types and errors of the published client (anthropic 2.14), platform.claude.com/docs/en/api/errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.responses import (
    EVENT_STREAM_TYPE,
    Reply,
    encoded,
    google_error,
    json_reply,
    read_object,
)
from llmbeam_sandbox.models.answers import Answer, count_tokens, pieces, prompt_sha256
from llmbeam_sandbox.models.calls import ModelCall, RefusedError
from llmbeam_sandbox.models.media import MediaRefusedError, anthropic_media
from llmbeam_sandbox.models.quota import Rejection
from llmbeam_sandbox.models.quota_errors import quota_exceeded
from llmbeam_sandbox.models.server import ModelServer

METHODS = Methods(names=("anthropic.messages", "anthropic.models"), streaming=frozenset({"anthropic.messages"}))
VERSION_HEADER = "anthropic-version"
VERSION = "2026-10-21"
THOUGHTS = "The prompt asks for an answer."
MIN_CACHED_TOKENS = 1_024
"""Smallest prefix that is stored, in tokens; of some models it is larger."""
CACHE_SECONDS = 300.0
LISTED_MODELS = ("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5")
_MIN_THINKING_TOKENS = 1_024
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_FIELDS = frozenset(
    {
        *("model", "messages", "max_tokens", "system", "stop_sequences", "stream", "thinking", "output_config"),
        *("metadata", "service_tier", "cache_control", "inference_geo", "anthropic_version"),
    }
)
# The keywords that the client of Anthropic moves into the description, as the API refuses them.
_REFUSED_KEYWORDS = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "maxItems", "uniqueItems", "oneOf", "patternProperties"),
    }
)
_ERROR_TYPE = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
#: `error.details.error_code` of limits. Source: anthropic 2.14, `types.shared`.
_LIMITS = frozenset(
    {
        *("ramp_limit_exceeded", "enforced_spend_limit_reached", "contract_spend_limit_reached"),
        *("linked_organization_spend_limit_reached", "linked_organization_billing_unavailable"),
    }
)
_ERROR_MESSAGE = {500: "Internal server error", 529: "Overloaded"}
_MODEL = (
    "/v1/projects/{project}/locations/{location}/publishers/anthropic/models/{model:[^/:]+}"
    ":{method:rawPredict|streamRawPredict}"
)


class PromptCache:
    """What requests have marked to be stored, until it was not used for 5 minutes.

    Args:
        now: Returns the time, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._expires: dict[str, float] = {}

    def has(self, key: str) -> bool:
        """Returns whether a prefix is stored."""
        return self._expires.get(key, -math.inf) > self._now()

    def store(self, key: str) -> None:
        """Stores a prefix, or extends its time."""
        self._expires[key] = self._now() + CACHE_SECONDS

    def clear(self) -> None:
        """Forgets everything."""
        self._expires.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicDialect:
    """One method of the API.

    Attributes:
        method: Method called.
        cache: What is stored of prompts.
        input_token_limit: Context length, in tokens.
        vertex_model: Model on a path of Vertex AI; "" on those of the API.
        location: Location on Vertex AI.
        resource: Project and location on Vertex AI.
    """

    method: Method
    cache: PromptCache
    input_token_limit: int
    vertex_model: str = ""
    location: str = ""
    resource: str = ""

    @property
    def is_metered(self) -> bool:
        """Whether a call is charged to the quota, takes time and is billed."""
        return self.method != "anthropic.models"

    def read(self, request: web.Request, body: bytes) -> ModelCall:
        """Reads and checks a request; raises `RefusedError` when the service would refuse it."""
        self.authenticate(request)
        if not self.is_metered:
            return ModelCall(model="", prompt="", system="", input_tokens=0, prompt_sha256="")
        call = self.parse(body)
        if self.vertex_model and request.match_info["method"] == "streamRawPredict" and not call.is_streamed:
            raise RefusedError(anthropic_error(400, "stream: must be true"))
        return call

    def parse(self, body: bytes) -> ModelCall:
        """Reads and checks a body; raises `RefusedError` when the service would refuse it."""
        try:
            call = self._call(read_object(body))
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            message = f"The request body is not valid JSON: {error}"
            raise RefusedError(anthropic_error(400, message)) from error
        if call.input_tokens > self.input_token_limit:
            message = f"prompt is too long: {call.input_tokens} tokens > {self.input_token_limit} maximum"
            raise RefusedError(anthropic_error(400, message))
        return call

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns the reply with an answer."""
        if not self.is_metered:
            listed = [{"id": name, "type": "model", "display_name": name} for name in LISTED_MODELS]
            ends = {"first_id": LISTED_MODELS[0], "last_id": LISTED_MODELS[-1], "has_more": False}
            known = {"created_at": "2026-01-01T00:00:00Z", "lifecycle": "active"}
            return json_reply({"data": [{**each, **known} for each in listed], **ends})
        if call.cache_key:
            self.cache.store(call.cache_key)
        message: dict[str, Any] = {
            "id": f"msg_{answer_id}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": [*_thoughts(call), {"type": "text", "text": answer.text}],
            "stop_reason": "max_tokens" if answer.is_cut else "end_turn",
            "stop_sequence": None,
            "usage": {
                **_usage(call, answer.output_tokens),
                "service_tier": "standard" if self.method == "anthropic.messages" else "batch",
            },
        }
        headers = {"request-id": f"req_{answer_id}"}
        if not call.is_streamed:
            return json_reply(message, headers=headers)
        chunks = tuple(map(_event, _events(message, answer)))
        return Reply(chunks=chunks, content_type=EVENT_STREAM_TYPE, headers=headers, is_streamed=True)

    def error(self, http_status: int, message: str) -> Reply:
        """Returns the reply with an error; an empty message gives the service's usual one.

        A message that is the code of a limit is that in `details`.
        """
        return anthropic_error(http_status, message, code=message if message in _LIMITS else None)

    def quota_exceeded(self, call: ModelCall, rejection: Rejection | None, delay: float | None) -> Reply:
        """Returns a 429, with the delay in `retry-after`, in whole seconds rounded up."""
        if self.vertex_model:
            return quota_exceeded(model=call.model, is_vertex=True, rejection=rejection, delay_seconds=delay)
        counted = "requests"
        if rejection is not None and rejection.limit_name == "tokens-per-minute":
            counted = "input tokens"
        limit = f"{rejection.limit} {counted} per minute" if rejection else f"{counted} per minute"
        message = f"This request would exceed the rate limit for your organization of {limit}."
        headers = {"x-should-retry": "true"}
        if delay is not None:
            headers["retry-after"] = str(math.ceil(delay))
        return anthropic_error(429, message, headers=headers)

    def limit_headers(
        self, call: ModelCall, limits: Mapping[str, tuple[int, int, float]], now: float
    ) -> Mapping[str, str]:
        """Returns the headers with the limits, which Vertex AI does not send."""
        found: dict[str, str] = {}
        for unit, (limit, left, seconds) in {} if self.vertex_model else limits.items():
            reset = datetime.fromtimestamp(now + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            values = {"limit": limit, "remaining": left, "reset": reset}
            found |= {f"anthropic-ratelimit-{unit}-{name}": str(value) for name, value in values.items()}
        return found

    def stream_error(self, reply: Reply, error: Reply) -> Reply:
        """Returns the reply with an error after the first events."""
        chunks = (*reply.chunks[:3], b"event: error\ndata: " + error.body + b"\n\n")
        return replace(reply, chunks=chunks)

    def authenticate(self, request: web.Request) -> None:
        """Checks the key or the token; raises `RefusedError`."""
        if self.vertex_model:
            if not request.headers.get("Authorization", "").startswith("Bearer "):
                raise RefusedError(google_error(401, "Request is missing required authentication credential."))
            return
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        key = bearer or request.headers.get("x-api-key")
        if not key:
            raise RefusedError(anthropic_error(401, "x-api-key header is required"))
        if key.startswith("invalid"):
            raise RefusedError(anthropic_error(401, "invalid x-api-key"))
        if not request.headers.get(VERSION_HEADER):
            raise RefusedError(anthropic_error(400, "anthropic-version: header is required"))

    def _call(self, fields: Mapping[str, Any]) -> ModelCall:
        for name in fields.keys() - _FIELDS:
            raise RefusedError(anthropic_error(400, f"{name}: Extra inputs are not permitted"))
        if self.vertex_model:
            if "model" in fields:
                raise RefusedError(anthropic_error(400, "model: Extra inputs are not permitted"))
            if not fields.get("anthropic_version"):
                raise RefusedError(anthropic_error(400, "anthropic_version: Field required"))
        for name in ("messages", "max_tokens", *(() if self.vertex_model else ("model",))):
            if not fields.get(name):
                raise RefusedError(anthropic_error(400, f"{name}: Field required"))
        model = self.vertex_model or str(fields["model"])
        if not model.startswith("claude-"):
            raise RefusedError(anthropic_error(404, f"model: {model}"))
        max_tokens = int(fields["max_tokens"])
        thinking = fields.get("thinking") or {}
        _check_thinking(thinking, max_tokens)
        config = fields.get("output_config") or {}
        if config.get("effort") not in (None, *_EFFORTS):
            message = f"output_config.effort: Input should be {', '.join(map(repr, _EFFORTS))}"
            raise RefusedError(anthropic_error(400, message))
        schema = (config.get("format") or {}).get("schema")
        if schema is not None:
            _check_schema(schema)
        system, said = _blocks(fields.get("system") or ""), list(fields["messages"])
        turns = [_blocks(turn["content"]) for turn in said]
        blocks = [block for turn in turns for block in turn]
        media = tuple(_media(block) for block in blocks if block.get("type") != "text")
        prompt = "\n".join(map(_text, turns))
        prefix = _marked([*system, *blocks])
        input_tokens = count_tokens(prompt) + count_tokens(_text(system)) + sum(file.tokens for file in media)
        prompt = "\n".join([*map(str, media), prompt])
        stored = min(count_tokens(prefix), input_tokens) if prefix else 0
        key = sha256(f"{model}\n{prefix}".encode()).hexdigest() if stored >= MIN_CACHED_TOKENS else ""
        return ModelCall(
            model=model,
            prompt=prompt,
            system=_text(system),
            input_tokens=input_tokens,
            prompt_sha256=prompt_sha256(prompt, _text(system)),
            schema=schema,
            max_output_tokens=max_tokens,
            is_streamed=bool(fields.get("stream")),
            media=media,
            cached_tokens=stored if key and self.cache.has(key) else 0,
            cache_write_tokens=stored if key and not self.cache.has(key) else 0,
            cache_key=key,
            thoughts=_shown_thoughts(thinking),
            turns=tuple(map(_text, turns)) if len(turns) > 1 else (),
        )


def routes(server: ModelServer, cache: PromptCache) -> list[web.RouteDef]:
    """Returns the routes of the API, and of Claude on Vertex AI; `GET /v1/models` is shared with OpenAI."""
    limit = server.settings.input_token_limit
    dialect = AnthropicDialect(method="anthropic.messages", cache=cache, input_token_limit=limit)

    async def create(request: web.Request) -> web.StreamResponse:
        return await server.serve(request, dialect)

    async def predict(request: web.Request) -> web.StreamResponse:
        found = request.match_info
        of_model = replace(
            dialect,
            vertex_model=found["model"],
            location=found["location"],
            resource=f"projects/{found['project']}/locations/{found['location']}",
        )
        return await server.serve(request, of_model)

    return [web.post("/v1/messages", create), web.post(_MODEL, predict)]


def list_dialect(cache: PromptCache) -> AnthropicDialect:
    """Returns the method that lists the models."""
    return AnthropicDialect(method="anthropic.models", cache=cache, input_token_limit=0)


def anthropic_error(
    http_status: int, message: str = "", *, headers: Mapping[str, str] | None = None, code: str | None = None
) -> Reply:
    """Returns an error reply; an empty message gives the service's usual one."""
    error: dict[str, Any] = {
        "type": _ERROR_TYPE.get(http_status, "api_error" if http_status >= 500 else "invalid_request_error"),
        "message": message or _ERROR_MESSAGE.get(http_status, f"HTTP {http_status}."),
    }
    if code is not None:
        error["details"] = {"error_code": code}
    body = {"type": "error", "error": error, "request_id": "req_sandbox"}
    return json_reply(body, http_status=http_status, headers={"request-id": "req_sandbox", **(headers or {})})


def _check_thinking(thinking: Mapping[str, Any], max_tokens: int) -> None:
    kind, budget = thinking.get("type"), thinking.get("budget_tokens", 0)
    if thinking and kind not in ("adaptive", "enabled", "disabled"):
        raise RefusedError(
            anthropic_error(400, "thinking.type: Input should be 'adaptive', 'enabled' or 'disabled'")
        )
    if kind == "enabled" and budget < _MIN_THINKING_TOKENS:
        message = (
            f"thinking.enabled.budget_tokens: Input should be greater than or equal to {_MIN_THINKING_TOKENS}"
        )
        raise RefusedError(anthropic_error(400, message))
    if kind == "enabled" and budget >= max_tokens:
        raise RefusedError(anthropic_error(400, "`max_tokens` must be greater than `thinking.budget_tokens`."))


def _check_schema(schema: Any) -> None:
    if isinstance(schema, list):
        for each in schema:
            _check_schema(each)
    if not isinstance(schema, Mapping):
        return
    if refused := sorted(schema.keys() & _REFUSED_KEYWORDS):
        message = f"output_config.format.schema: For this type, property '{refused[0]}' is not supported"
        raise RefusedError(anthropic_error(400, message))
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        message = "output_config.format.schema: For 'object' type, 'additionalProperties' must be set to false"
        raise RefusedError(anthropic_error(400, message))
    for name in ("properties", "$defs", "definitions"):
        _check_schema([*(schema.get(name) or {}).values()])
    for name in ("items", "anyOf", "allOf"):
        _check_schema(schema.get(name))


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _text(blocks: list[Mapping[str, Any]]) -> str:
    return "".join(str(block["text"]) for block in blocks if block.get("type") == "text")


def _media(block: Mapping[str, Any]) -> Any:
    try:
        return anthropic_media(block)
    except MediaRefusedError as refused:
        raise RefusedError(anthropic_error(400, str(refused))) from None


def _marked(blocks: list[Mapping[str, Any]]) -> str:
    """Returns the text before the last mark."""
    marks = [index for index, block in enumerate(blocks) if block.get("cache_control")]
    return "\n".join(_text([block]) for block in blocks[: marks[-1] + 1]) if marks else ""


def _shown_thoughts(thinking: Mapping[str, Any]) -> str | None:
    """Returns the thoughts that a request asks for; the default of `display` depends on the model."""
    if thinking.get("type") not in ("adaptive", "enabled"):
        return None
    return THOUGHTS if thinking.get("display") == "summarized" else ""


def _thoughts(call: ModelCall) -> list[dict[str, Any]]:
    if call.thoughts is None:
        return []
    return [{"type": "thinking", "thinking": call.thoughts, "signature": "c2FuZGJveA=="}]


def _usage(call: ModelCall, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": call.input_tokens - call.cached_tokens - call.cache_write_tokens,
        "cache_read_input_tokens": call.cached_tokens,
        "cache_creation_input_tokens": call.cache_write_tokens,
        "output_tokens": output_tokens,
    }


def _events(message: Mapping[str, Any], answer: Answer) -> Iterator[dict[str, Any]]:
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    *thoughts, _ = message["content"]
    for thought in thoughts:
        yield {
            "type": "content_block_start",
            "index": 0,
            "content_block": {**thought, "thinking": "", "signature": ""},
        }
        delta = {"type": "thinking_delta", "thinking": thought["thinking"]}
        yield {"type": "content_block_delta", "index": 0, "delta": delta}
        signed = {"type": "signature_delta", "signature": thought["signature"]}
        yield {"type": "content_block_delta", "index": 0, "delta": signed}
        yield {"type": "content_block_stop", "index": 0}
    index = len(thoughts)
    yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
    yield {"type": "ping"}
    for piece in pieces(answer.text):
        yield {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": piece}}
    yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


def _event(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: ".encode() + encoded(event) + b"\n\n"
