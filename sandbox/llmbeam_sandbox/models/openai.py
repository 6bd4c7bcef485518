"""The part of the OpenAI API that chat clients use: chat completions and the list of models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.records import ReceivedMedia
from llmbeam_sandbox.core.responses import (
    EVENT_STREAM_TYPE,
    Reply,
    encoded,
    json_reply,
    read_object,
)
from llmbeam_sandbox.models import anthropic
from llmbeam_sandbox.models.answers import (
    ANY_JSON,
    Answer,
    count_tokens,
    pieces,
    prompt_sha256,
    words_of,
)
from llmbeam_sandbox.models.calls import Dialect, ModelCall, RefusedError, asked_tier
from llmbeam_sandbox.models.catalog import is_openai
from llmbeam_sandbox.models.media import MediaRefusedError, chat_media
from llmbeam_sandbox.models.quota import LimitName, Rejection
from llmbeam_sandbox.models.schema import Schema
from llmbeam_sandbox.models.server import ModelServer

LISTED_MODELS = ("google/gemma-3-1b-it", "gpt-4o-mini")
"""Models that `GET /v1/models` lists; `catalog` has the others."""
CREATED = 1_700_000_000
LOGPROB = -0.25
"""Logarithm of the probability of every token of an answer."""
MAX_STOPS = 4
"""Largest number of stop sequences of OpenAI's own models. Source: platform.openai.com/docs/api-reference/chat."""
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
UNMETERED = frozenset({"openai.models", "run.models"})
METHODS = Methods(
    names=("openai.chatCompletions", "openai.models"), streaming=frozenset({"openai.chatCompletions"})
)
_SYSTEM_ROLES = frozenset({"system", "developer"})
_ERROR_TYPE = {
    401: "invalid_request_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "requests",
}
_ERROR_MESSAGE = {
    429: "Rate limit reached.",
    500: "The server had an error while processing your request. Sorry about that!",
    503: "The engine is currently overloaded, please try again later.",
}
_LIMIT_NAMES: Mapping[LimitName, tuple[str, str]] = {
    "requests-per-minute": ("requests", "requests per min (RPM)"),
    "tokens-per-minute": ("tokens", "tokens per min (TPM)"),
    "requests-per-day": ("requests", "requests per day (RPD)"),
    "window": ("requests", "requests per window"),
    "usage-tier": ("tokens", "tokens per min (TPM)"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIDialect:
    """One method of the OpenAI API.

    Attributes:
        method: Method called, e.g. "openai.chatCompletions".
        api_key: Key that callers must send as bearer token; None accepts every caller.
        input_token_limit: Context length, in tokens.
        resource: Name of the deployed model that is called; "" for none.
        any_model: Whether models that are not in the catalogue answer, too.
    """

    method: Method
    api_key: str | None
    input_token_limit: int
    resource: str = ""
    any_model: bool = True

    @property
    def location(self) -> str:
        """Location of the quota that a call is charged to: none, as all paths here share one."""
        return ""

    @property
    def listed(self) -> tuple[str, ...]:
        """Names of the listed models."""
        return LISTED_MODELS

    @property
    def is_metered(self) -> bool:
        """Whether a call is charged to the quota, takes time and is billed."""
        return self.method not in UNMETERED

    def read(self, request: web.Request, body: bytes) -> ModelCall:
        """Reads and checks a request; raises `RefusedError` when the service would refuse it."""
        self.authenticate(request)
        if self.method in UNMETERED:
            return ModelCall(model="", prompt="", system="", input_tokens=0, prompt_sha256="")
        return self.parse(body)

    def parse(self, body: bytes) -> ModelCall:
        """Reads and checks a body; raises `RefusedError` when the service would refuse it."""
        try:
            call = self.call(read_object(body))
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            message = f"We could not parse the JSON body of your request: {error}"
            raise RefusedError(openai_error(400, message)) from error
        if call.input_tokens > self.input_token_limit:
            raise RefusedError(self._too_long(call.input_tokens))
        return call

    def call(self, fields: Mapping[str, Any]) -> ModelCall:
        """Reads the fields of a request; raises `RefusedError` when the service would refuse it."""
        call = self.known(chat_call(fields))
        stops = fields.get("stop") or ()
        if is_openai(call.model) and not isinstance(stops, str) and len(stops) > MAX_STOPS:
            message = (
                f"Invalid 'stop': array too long. Expected an array with maximum length {MAX_STOPS}, but got an "
                f"array with length {len(stops)} instead."
            )
            raise RefusedError(openai_error(400, message, param="stop", code="array_above_max_length"))
        return call

    def known(self, call: ModelCall, *, embeds: bool = False) -> ModelCall:
        """Returns the call; raises `RefusedError` when no such model is hosted."""
        if self.any_model or is_openai(call.model, embeds=embeds):
            return call
        message = f"The model `{call.model}` does not exist or you do not have access to it."
        raise RefusedError(openai_error(404, message, code="model_not_found"))

    def authenticate(self, request: web.Request) -> None:
        """Checks the key; raises `RefusedError`."""
        if self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            raise RefusedError(openai_error(401, "Incorrect API key provided.", code="invalid_api_key"))

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns the reply with an answer."""
        if self.method in UNMETERED:
            return json_reply({"object": "list", "data": [_model(name) for name in self.listed]})
        common = {"id": f"chatcmpl-{answer_id}", "created": CREATED, "model": call.model}
        common["service_tier"] = "default" if call.tier == "standard" else call.tier
        reason = "length" if answer.is_cut else "stop"
        if call.is_streamed:
            return self._stream(call, answer, common, reason)
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": _logprobs(call, answer), "finish_reason": reason}
        body = {"object": "chat.completion", **common, "choices": [choice], "usage": _usage(call, answer)}
        return json_reply(body)

    def error(self, http_status: int, message: str) -> Reply:
        """Returns the reply with an error; an empty message gives the service's usual one."""
        return openai_error(http_status, message)

    def quota_exceeded(self, call: ModelCall, rejection: Rejection | None, delay: float | None) -> Reply:
        """Returns a 429 with the delay in `Retry-After`, in whole seconds rounded up."""
        kind, limit = _LIMIT_NAMES[rejection.limit_name] if rejection else ("requests", "requests")
        message = f"Rate limit reached for {call.model} on {limit}."
        headers: dict[str, str] = {}
        if delay is not None:
            message += f" Please try again in {delay:.3f}s."
            headers = {"Retry-After": str(math.ceil(delay)), "retry-after-ms": str(math.ceil(delay * 1000))}
        return openai_error(429, message, kind=kind, code="rate_limit_exceeded", headers=headers)

    def limit_headers(
        self, call: ModelCall, limits: Mapping[str, tuple[int, int, float]], now: float
    ) -> Mapping[str, str]:
        """Returns the headers with the limits, which servers with this API other than OpenAI rarely send."""
        found: dict[str, str] = {}
        for unit, (limit, left, seconds) in limits.items() if is_openai(call.model) else ():
            values = {"limit": limit, "remaining": left, "reset": f"{math.ceil(seconds * 1000)}ms"}
            found |= {f"x-ratelimit-{name}-{unit}": str(value) for name, value in values.items()}
        return found

    def stream_error(self, reply: Reply, error: Reply) -> Reply:
        """Returns the reply with an error after the first chunk."""
        return Reply(
            chunks=(reply.chunks[0], _event(error.body)), content_type=EVENT_STREAM_TYPE, is_streamed=True
        )

    def _too_long(self, tokens: int) -> Reply:
        message = (
            f"This model's maximum context length is {self.input_token_limit} tokens. However, your messages "
            f"resulted in {tokens} tokens. Please reduce the length of the messages."
        )
        return openai_error(400, message, param="messages", code="context_length_exceeded")

    def _stream(self, call: ModelCall, answer: Answer, common: Mapping[str, Any], reason: str) -> Reply:
        deltas: list[dict[str, str]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in pieces(answer.text)]
        choices = [[_choice(delta, None)] for delta in deltas] + [[_choice({}, reason)]]
        chunks = [{"object": "chat.completion.chunk", **common, "choices": choice} for choice in choices]
        if call.has_usage:
            last = {"object": "chat.completion.chunk", **common, "choices": [], "usage": _usage(call, answer)}
            chunks = [{**chunk, "usage": None} for chunk in chunks] + [last]
        events = [*(_event(encoded(chunk)) for chunk in chunks), _event(b"[DONE]")]
        return Reply(chunks=tuple(events), content_type=EVENT_STREAM_TYPE, is_streamed=True)


def routes(server: ModelServer, claude_models: Dialect) -> list[web.RouteDef]:
    """Returns the routes of the OpenAI API.

    Args:
        server: Server of all models.
        claude_models: The list of models of Claude, which has the same path on another host.
    """
    settings = server.settings
    completions, models = (
        OpenAIDialect(
            method=method,
            api_key=settings.openai_api_key,
            input_token_limit=settings.input_token_limit,
            any_model=settings.any_model,
        )
        for method in METHODS.names
    )

    async def complete(request: web.Request) -> web.StreamResponse:
        return await server.serve(request, completions)

    async def list_models(request: web.Request) -> web.StreamResponse:
        is_claude = anthropic.VERSION_HEADER in request.headers
        return await server.serve(request, claude_models if is_claude else models)

    return [web.post("/v1/chat/completions", complete), web.get("/v1/models", list_models)]


def openai_error(
    http_status: int,
    message: str = "",
    *,
    kind: str = "",
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Returns an error reply; an empty message gives the service's usual one."""
    usual = "server_error" if http_status >= 500 else "invalid_request_error"
    error = {
        "message": message or _ERROR_MESSAGE.get(http_status, f"HTTP {http_status}."),
        "type": kind or _ERROR_TYPE.get(http_status, usual),
        "param": param,
        "code": code,
    }
    return json_reply({"error": error}, http_status=http_status, headers=headers)


def chat_call(fields: Mapping[str, Any]) -> ModelCall:
    """Reads the fields of a chat completion; raises `RefusedError` when they are invalid."""
    model, messages = fields.get("model"), fields.get("messages")
    if not model:
        raise RefusedError(openai_error(400, "you must provide a model parameter"))
    if not messages:
        raise RefusedError(openai_error(400, "[] is too short - 'messages'", param="messages"))
    _check_effort(fields.get("reasoning_effort"))
    media = tuple(
        found
        for message in messages
        if not isinstance(content := message.get("content") or "", str)
        for part in content
        if (found := _media(part)) is not None
    )
    said = [message for message in messages if message.get("role") not in _SYSTEM_ROLES]
    prompt = _text(said)
    system = _text([message for message in messages if message.get("role") in _SYSTEM_ROLES])
    input_tokens = count_tokens(prompt) + count_tokens(system) + sum(file.tokens for file in media)
    prompt = "\n".join([*map(str, media), prompt])
    return ModelCall(
        model=model,
        prompt=prompt,
        system=system,
        input_tokens=input_tokens,
        media=media,
        prompt_sha256=prompt_sha256(prompt, system),
        schema=_schema(fields.get("response_format") or {}) or _choices(fields),
        is_enum=_choices(fields) is not None,
        has_logprobs=bool(fields.get("logprobs")),
        max_output_tokens=_max_output_tokens(fields),
        is_streamed=bool(fields.get("stream")),
        has_usage=bool((fields.get("stream_options") or {}).get("include_usage")),
        tier=asked_tier(fields.get("service_tier")),
        turns=tuple(_text([message]) for message in said) if len(said) > 1 else (),
    )


def _media(part: Mapping[str, Any]) -> ReceivedMedia | None:
    try:
        return chat_media(part)
    except MediaRefusedError as refused:
        error = openai_error(400, str(refused), param="messages", code="invalid_value")
        raise RefusedError(error) from None


def _text(messages: list[Mapping[str, Any]]) -> str:
    contents = [message.get("content") or "" for message in messages]
    parts = [
        part.get("text", "")
        for content in contents
        for part in ([{"text": content}] if isinstance(content, str) else content)
    ]
    return "\n".join(parts)


def _schema(response_format: Mapping[str, Any]) -> Schema | None:
    match response_format.get("type"):
        case "json_schema":
            schema: Schema = response_format["json_schema"].get("schema") or ANY_JSON
            return schema
        case "json_object":
            return ANY_JSON
        case _:
            return None


def _choices(fields: Mapping[str, Any]) -> Schema | None:
    """Returns the only valid answers, with the field of vLLM 0.12 or with that of the versions before."""
    choices = (fields.get("structured_outputs") or {}).get("choice") or fields.get("guided_choice")
    return {"type": "string", "enum": list(choices)} if choices else None


def _logprobs(call: ModelCall, answer: Answer) -> dict[str, Any] | None:
    if not call.has_logprobs:
        return None
    logprob = LOGPROB if answer.mean_logprob is None else answer.mean_logprob
    known: dict[str, Any] = {"logprob": logprob, "bytes": None, "top_logprobs": []}
    return {"content": [{"token": word, **known} for word in words_of(answer.text)], "refusal": None}


def _check_effort(effort: Any) -> None:
    if effort is not None and effort not in _EFFORTS:
        message = f"Invalid value: '{effort}'. Supported values are: {', '.join(map(repr, _EFFORTS))}."
        raise RefusedError(openai_error(400, message, param="reasoning_effort", code="invalid_value"))


def _max_output_tokens(fields: Mapping[str, Any]) -> int | None:
    limit = fields.get("max_completion_tokens", fields.get("max_tokens"))
    if limit is not None and int(limit) < 1:
        message = f"Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got {limit}."
        raise RefusedError(openai_error(400, message, param="max_tokens", code="integer_below_min_value"))
    return None if limit is None else int(limit)


def _usage(call: ModelCall, answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": call.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": call.input_tokens + answer.output_tokens,
    }


def _choice(delta: Mapping[str, str], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "sandbox"}
