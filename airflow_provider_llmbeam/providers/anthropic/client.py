"""Claude, by the Claude API or on Vertex AI.

Requests and replies are those of the published client (anthropic 2.14, `types`), which is not used: the transport
is that of the other backends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_llmbeam.engine.backend import ON_TEXT, Reply, error_of_response, kind_of_status
from airflow_provider_llmbeam.engine.media.data_uri import inline_parts
from airflow_provider_llmbeam.engine.prefix import CachedHead
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import TRANSIENT_KINDS, RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.providers.access import open_access
from airflow_provider_llmbeam.providers.anthropic.schema import claude_schema
from airflow_provider_llmbeam.providers.http import (
    HttpBackend,
    HttpClient,
    Response,
    StreamedText,
    encoded,
    incomplete_stream,
    with_idle_timeout,
)
from airflow_provider_llmbeam.providers.reported import (
    NO_CHUNK,
    Billed,
    UsageReader,
    estimated_prompt,
    estimated_text,
    finish_reason_of,
    invalid_response,
    json_object,
    name_of,
)
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.model import AnthropicModel, Generation
from airflow_provider_llmbeam.spec.model.media import place_of
from airflow_provider_llmbeam.spec.model.model import ANTHROPIC_VERSION
from airflow_provider_llmbeam.spec.model.tier import AskedTier
from airflow_provider_llmbeam.transport.server_reply import (
    list_of,
    mapping_of,
    parse_json,
    read_error,
    str_of,
)

#: Stop reasons of a whole answer. Any other one is that of tools, which nothing here asks for.
#: Source: anthropic 2.14, `types.StopReason`
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
}
_NO_ANSWER = "no message"
#: Statuses of the errors that a stream names by their type alone. Source: platform.claude.com/docs/en/api/errors,
#: anthropic 2.14 (`types.shared.ErrorType`)
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
#: `error.details.error_code` of a limit that no wait lifts. `ramp_limit_exceeded` is none of them.
#: Source: anthropic 2.14, `_error_classes`
_SPENT = frozenset(
    {
        *("enforced_spend_limit_reached", "contract_spend_limit_reached"),
        *("linked_organization_spend_limit_reached", "linked_organization_billing_unavailable"),
    }
)
#: Marks the end of what the provider stores, for 5 minutes from its last use.
_CACHED = {"type": "ephemeral"}


class AnthropicBackend(HttpBackend):
    """Client of a Claude model.

    Args:
        model: The model.
        generation: Parameters of the answer.
        output_schema: JSON Schema of the answer.
        cached: The head of the prompts that the provider is asked to store; it has no name.

    Raises:
        JobSpecError: There is no key, or on Vertex AI no Google credentials.
    """

    def __init__(
        self,
        model: AnthropicModel,
        generation: Generation,
        output_schema: Mapping[str, Any] | None,
        cached: CachedHead | None = None,
    ) -> None:
        super().__init__(HttpClient(model.address, open_access(model), model.api.fixed_headers))
        self._model = model
        self._generation = generation
        self._cached = cached
        self._url = model.messages_url(stream=generation.stream)
        self._fields = {**message_fields(model), **parameters(generation, output_schema)}
        self._usage = UsageReader(model.name, "standard")

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one message."""
        body = {**self._fields, **messages(prompt, self._cached)}
        started = time.monotonic()
        async with self._http.post(self._url, encoded(body) if prompt.media else body) as response:
            if response.status != 200:
                raise error_of(response.status, response.headers, await response.error_text())
            if self._generation.stream:
                return await self._stream(response, prompt, started)
            content = await response.read()
            answer = json_object(content, _NO_ANSWER, error_of, response.headers)
            return read_reply(answer, content, prompt, self._model.name, self._usage)

    async def _stream(self, response: Response, prompt: Prompt, started: float) -> Reply:
        """Assembles a streamed answer in the format of an unstreamed one."""
        first_token_seconds, text, thoughts = None, StreamedText(ON_TEXT.get()), StreamedText()
        answer: dict[str, Any] = {}
        has_ended = False
        async for line in with_idle_timeout(response.lines(), self._generation.stream_idle_timeout_seconds):
            if not line.startswith(b"data:"):
                continue
            event = json_object(line.removeprefix(b"data:").strip(), NO_CHUNK, error_of, response.headers)
            match event.get("type"):
                case "message_start":
                    answer = dict(mapping_of(event.get("message")))
                case "content_block_delta":
                    delta = mapping_of(event.get("delta"))
                    text.add(str_of(delta.get("text")))
                    thoughts.add(str_of(delta.get("thinking")))
                case "message_delta":
                    # The counts are those of the whole answer, and replace those of its beginning.
                    reported = {
                        name: count for name, count in mapping_of(event.get("usage")).items() if count is not None
                    }
                    usage = {**mapping_of(answer.get("usage")), **reported}
                    answer = {**answer, **mapping_of(event.get("delta")), "usage": usage}
                case "message_stop":
                    has_ended = True
            if first_token_seconds is None and text:
                first_token_seconds = time.monotonic() - started
        if not has_ended:
            raise incomplete_stream()
        answer["content"] = [
            {"type": "thinking", "thinking": thoughts.whole()},
            {"type": "text", "text": text.whole()},
        ]
        reply = read_reply(answer, b"", prompt, self._model.name, self._usage)
        return replace(reply, first_token_seconds=first_token_seconds)


def open_backend(
    model: AnthropicModel,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    *,
    asked_tier: AskedTier = "standard",
    cached: CachedHead | None = None,
) -> AnthropicBackend:
    """Opens the client of a Claude model, which has no tiers that a job can ask for; see `AnthropicBackend`."""
    return AnthropicBackend(model, generation, output_schema, cached)


def message_fields(model: AnthropicModel) -> dict[str, Any]:
    """Returns the fields of a request that name the model or, on Vertex AI, the version of the API."""
    return {"anthropic_version": ANTHROPIC_VERSION} if model.project else {"model": model.name}


def parameters(generation: Generation, output_schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the fields of a request that are the same for all prompts: nothing that was not asked for."""
    output_config = {
        "effort": generation.reasoning_effort,
        "format": None
        if output_schema is None
        else {"type": "json_schema", "schema": claude_schema(output_schema)},
    }
    given = {
        "max_tokens": generation.max_output_tokens,
        "stop_sequences": list(generation.stop_sequences) or None,
        "stream": generation.stream or None,
        "thinking": _thinking(generation),
        "output_config": {name: value for name, value in output_config.items() if value is not None} or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _thinking(generation: Generation) -> dict[str, Any] | None:
    budget = generation.thinking_budget_tokens
    if budget is None:
        return None
    if budget == 0:
        return {"type": "disabled"}
    display = {"display": "summarized"} if generation.keep_reasoning else {}
    if budget == -1:
        return {"type": "adaptive", **display}
    return {"type": "enabled", "budget_tokens": budget, **display}


def messages(prompt: Prompt, cached: CachedHead | None = None) -> dict[str, Any]:
    """Returns the fields of a request that hold the prompt.

    Args:
        prompt: The prompt.
        cached: The head of the prompts that is marked to be stored.
    """
    rest = None if cached is None else cached.head.rest_of(prompt)
    text, system = [_text(prompt.text)], [_text(prompt.system)] if prompt.system else []
    if cached is not None and rest is not None:
        if cached.head.text:
            text = [{**_text(cached.head.text), "cache_control": _CACHED}, _text(rest)]
        else:
            system = [{**_text(cached.head.system or ""), "cache_control": _CACHED}]
    said: list[dict[str, Any]] = []
    for turn in prompt.history:
        said.append({"role": "user", "content": turn.text})
        said.append({"role": "assistant", "content": turn.answer})
    # A blank text is refused, also beside others. Source: github.com/home-assistant/core/issues/175637
    told = [block for block in text if block["text"].strip()]
    content = [*(_media(*media) for media in prompt.media), *told]
    return {
        "messages": [*said, {"role": "user", "content": content}],
        **({"system": system} if system else {}),
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _media(uri: str, mime_type: str | None) -> dict[str, Any]:
    source = {"type": "url", "url": uri}
    if place_of(uri) == "data":
        mime_type, content = inline_parts(uri)
        source = {"type": "base64", "media_type": mime_type, "data": content}
    return {"type": "document" if mime_type == "application/pdf" else "image", "source": source}


def read_reply(body: Mapping[str, Any], content: bytes, prompt: Prompt, model: str, usage: UsageReader) -> Reply:
    """Reads a message; `content` is quoted in the error of any other object."""
    blocks = [mapping_of(block) for block in list_of(body.get("content"))]
    text = "".join(str_of(block.get("text")) for block in blocks if block.get("type") == "text")
    reasoning = "".join(str_of(block.get("thinking")) for block in blocks)
    reported = mapping_of(body.get("usage"))
    # Unlike with other providers, `input_tokens` excludes what was read from the cache, or written to it.
    read_tokens, cache_write_tokens = (
        usage.tokens(reported.get(f"cache_{name}_input_tokens")) or 0 for name in ("read", "creation")
    )
    uncached, of_input = usage.count(
        reported.get("input_tokens"),
        0 if read_tokens or cache_write_tokens else estimated_prompt(prompt),
    )
    output_tokens, of_output = usage.count(reported.get("output_tokens"), estimated_text(text + reasoning))
    details = mapping_of(reported.get("output_tokens_details"))
    billed = Billed(
        tokens=Tokens(
            uncached + read_tokens + cache_write_tokens,
            output_tokens,
            cached=read_tokens,
            cache_write=cache_write_tokens,
            estimated=of_input + of_output,
            reasoning=min(usage.tokens(details.get("thinking_tokens")) or 0, output_tokens),
        ),
        service_tier=usage.tier(reported.get("service_tier")),
    )
    if body.get("type") != "message":
        raise invalid_response(content, _NO_ANSWER, **billed)
    reason = finish_reason_of(body.get("stop_reason"))
    if reason == "refusal":
        stop = mapping_of(body.get("stop_details"))
        why = str_of(stop.get("explanation")) or "no explanation"
        category = name_of(stop.get("category"), "refusal")
        raise RequestError("blocked", f"answer withheld: {why}", http_status=200, category=category, **billed)
    if reason not in _FINISH_REASONS:
        message = f"a 200 with an answer that is not whole (stop reason {reason!r})"
        raise RequestError("garbage", message, http_status=200, **billed)
    return Reply(
        text=valid_text(text),
        finish_reason=_FINISH_REASONS[reason],
        **billed,
        model=name_of(body.get("model"), model),
        reasoning=valid_text(reasoning),
    )


def error_of(http_status: int, headers: Mapping[str, str], text: str) -> RequestError:
    """Parses an error response, or the error of a stream."""
    body, error = read_error(text), mapping_of(mapping_of(parse_json(text)).get("error"))
    if http_status == 500:  # or that of a stream, which names the type alone
        http_status = _STATUSES.get(body.type or "", 500)
    kind = kind_of_status(http_status)
    should_retry = {name.lower(): value for name, value in headers.items()}.get("x-should-retry")
    code = mapping_of(error.get("details")).get("error_code")
    # A limit of the rate refills; what is refused with a 429 and the advice not to retry does not within the job.
    if code in _SPENT or body.type == "billing_error" or (kind == "throttled" and should_retry == "false"):
        kind = "quota_exhausted"
    elif should_retry == "true" and kind == "bad_request":
        kind = "server_error"
    found = error_of_response(kind, http_status, headers, body)
    found.is_given_up = should_retry == "false" and kind in TRANSIENT_KINDS
    return found
