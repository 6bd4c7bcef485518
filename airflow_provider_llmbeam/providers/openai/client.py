"""Servers with the OpenAI chat API: vLLM, Ollama, llama.cpp, or a hosted one."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.backend import ON_TEXT, Reply, error_of_response, kind_of_status
from airflow_provider_llmbeam.engine.media.data_uri import inline_parts
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.providers.access import open_access
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
    ErrorOf,
    UsageReader,
    estimated_prompt,
    estimated_text,
    finish_reason_of,
    invalid_response,
    json_object,
    name_of,
    token_logprobs_of,
)
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.model import Generation, OpenAIModel
from airflow_provider_llmbeam.spec.model.media import place_of
from airflow_provider_llmbeam.spec.model.tier import AskedTier
from airflow_provider_llmbeam.transport.server_reply import UNPAID, list_of, mapping_of, read_error, str_of

FINISH_REASONS = {"stop": "stop", "length": "max_tokens", "max_tokens": "max_tokens", "model_length": "max_tokens"}
#: Further finish reasons of a whole answer: of TGI, Anthropic, Cohere, and of models that name a tool. With any
#: other one the text ends anywhere: vLLM and SGLang when they shut down, pause or abort requests, or see a
#: `repetition`, Mistral and OpenRouter after an error, DeepSeek under load. Sources:
#: github.com/vllm-project/vllm/issues/57082 (2026-09), api-docs.deepseek.com/api/create-chat-completion
_WHOLE = frozenset(
    {"eos", "eos_token", "stop_sequence", "end_turn", "complete", "completed", "tool_calls", "function_call"}
)
#: Reasons that certainly mean the whole server, and so every prompt of a request.
BROKEN_OFF = frozenset({"abort", "error", "insufficient_system_resource"})
_NO_ANSWER = "no chat completion"
#: Fields for the maximum length of an answer. Azure, and gateways with newer models of OpenAI, refuse the first.
_CAP, _NEW_CAP = "max_tokens", "max_completion_tokens"
#: Formats of `input_audio`, which OpenAI and vLLM take.
_AUDIO_FORMATS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


class ChatBackend(HttpBackend):
    """Client of a server with chat completions.

    Args:
        http: The session.
        url: Address of the method.
        name: Name of the model, if the server does not report one.
        generation: Parameters of the answer.
        parameters: The same parameters, as fields of a request.
        error_of: Parses an error response from its status, its headers and its body.
        asked_tier: Tier that `parameters` ask for.
    """

    def __init__(
        self,
        http: HttpClient,
        url: str,
        name: str,
        generation: Generation,
        parameters: Mapping[str, Any],
        error_of: ErrorOf,
        asked_tier: AskedTier = "standard",
    ) -> None:
        super().__init__(http)
        self._url = url
        self._name = name
        self._generation = generation
        self._parameters = parameters
        self._error_of = error_of
        self._usage = UsageReader(name, asked_tier)

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one chat completion request; a second one if the server wants the other field for the length."""
        parameters = self._parameters
        try:
            return await self._send(parameters, prompt)
        except RequestError as error:
            if error.http_status != 400 or _CAP not in parameters or _NEW_CAP not in error.message:
                raise
        self._parameters = {_NEW_CAP if name == _CAP else name: value for name, value in parameters.items()}
        return await self._send(self._parameters, prompt)

    async def _send(self, parameters: Mapping[str, Any], prompt: Prompt) -> Reply:
        body = {**parameters, "messages": chat_messages(prompt)}
        started = time.monotonic()
        async with self._http.post(self._url, encoded(body) if prompt.media else body) as response:
            # Some servers stream whatever they are asked for.
            is_stream = response.headers.get("Content-Type", "").startswith("text/event-stream")
            if response.status == 200 and (self._generation.stream or is_stream):
                return await self._stream(response, prompt, started)
            if response.status != 200:
                text = await response.error_text()
                raise self._error_of(response.status, response.headers, text)
            content = await response.read()
            answer = json_object(content, _NO_ANSWER, self._error_of, response.headers)
            reply = read_reply(answer, content, prompt, self._name, self._usage)
            return dataclasses.replace(reply, model=self._model_of(response.headers) or reply.model)

    def _model_of(self, headers: Mapping[str, str]) -> str | None:
        """Returns the model that the headers of a reply name, if they do."""
        return None

    async def _stream(self, response: Response, prompt: Prompt, started: float) -> Reply:
        """Assembles a streamed answer in the format of an unstreamed one."""
        first_token_seconds = None
        text, reasoning, refusal = StreamedText(ON_TEXT.get()), StreamedText(), StreamedText()
        finish_reason, usage, model, tier = None, None, None, None
        async for line in with_idle_timeout(response.lines(), self._generation.stream_idle_timeout_seconds):
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue
            chunk = json_object(data, NO_CHUNK, self._error_of, response.headers)
            usage, model = chunk.get("usage") or usage, chunk.get("model") or model
            tier = chunk.get("service_tier") or tier
            for choice in map(mapping_of, list_of(chunk.get("choices"))):
                delta = mapping_of(choice.get("delta"))
                with contextlib.suppress(TypeError):
                    for found, piece in zip((text, reasoning), texts_of(delta), strict=True):
                        found.add(piece)
                refusal.add(str_of(delta.get("refusal")))
                finish_reason = choice.get("finish_reason") or finish_reason
            if first_token_seconds is None and text:
                first_token_seconds = time.monotonic() - started
        if finish_reason is None:  # the last line is not reliable: `transformers serve` sends no "[DONE]"
            raise incomplete_stream()
        message = {"content": text.whole(), "reasoning": reasoning.whole(), "refusal": refusal.whole()}
        choice = {"finish_reason": finish_reason, "message": message}
        whole = {"choices": [choice], "usage": usage, "model": model, "service_tier": tier}
        reply = read_reply(whole, b"", prompt, self._name, self._usage)
        name = self._model_of(response.headers) or reply.model
        return dataclasses.replace(reply, first_token_seconds=first_token_seconds, model=name)


class OpenAIBackend(ChatBackend):
    """Client of a model of a server with the OpenAI API.

    Args:
        model: The model.
        generation: Parameters of the answer.
        output_schema: JSON Schema of the answer.
        asked_tier: Tier that requests ask for; only OpenAI itself has others than the standard one.

    Raises:
        JobSpecError: The server requires an ID token, and there are no credentials that issue one.
    """

    def __init__(
        self,
        model: OpenAIModel,
        generation: Generation,
        output_schema: Mapping[str, Any] | None,
        *,
        asked_tier: AskedTier = "standard",
    ) -> None:
        parameters = model_parameters(model, generation, output_schema)
        super().__init__(
            HttpClient(model.base_url, open_access(model), certificate=model.api.certificate),
            model.url_of("chat/completions"),
            model.name,
            generation,
            parameters if asked_tier == "standard" else {**parameters, "service_tier": asked_tier},
            error_of,
            asked_tier,
        )


open_backend = OpenAIBackend


def model_parameters(
    model: OpenAIModel, generation: Generation, output_schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the fields of a request that are the same for all prompts of a job."""
    # Newer models of OpenAI reject `max_tokens`; vLLM, Ollama and llama.cpp accept it.
    cap = model.max_tokens_field or (_NEW_CAP if "api.openai.com" in model.base_url else _CAP)
    return {"model": model.name, **chat_parameters(generation, output_schema, cap)}


def chat_parameters(
    generation: Generation, output_schema: Mapping[str, Any] | None, cap: str = _CAP
) -> dict[str, Any]:
    """Returns the fields of a request that are the same for all prompts.

    Args:
        generation: Parameters of the answer.
        output_schema: JSON Schema of the answer.
        cap: Name of the field for the maximum length of the answer.
    """
    given = {
        cap: generation.max_output_tokens,
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
        "seed": generation.seed,
        "stop": list(generation.stop_sequences) or None,
        "stream": generation.stream or None,
        "stream_options": {"include_usage": True} if generation.stream else None,
        "reasoning_effort": generation.reasoning_effort,
        "logprobs": bool(generation.logprobs) or None,
        **_restriction(generation),
        "response_format": None
        if output_schema is None
        else {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(output_schema)}},
        **generation.extra_body,
    }
    return {name: value for name, value in given.items() if value is not None}


def _restriction(generation: Generation) -> dict[str, Any]:
    """Returns the fields of vLLM: that of version 0.12 and later, and the one before; each ignores the other.

    Source: docs.vllm.ai/en/latest/features/structured_outputs (2026-11)
    """
    if generation.structured_outputs is None:
        return {}
    ((name, value),) = generation.structured_outputs.items()
    return {"structured_outputs": {name: value}, f"guided_{name}": value}


def chat_messages(prompt: Prompt) -> list[dict[str, Any]]:
    """Returns the messages of one request."""
    content: Any = prompt.text
    if prompt.media:
        content = [*(_part(*media) for media in prompt.media), {"type": "text", "text": prompt.text}]
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    for turn in prompt.history:
        messages.append({"role": "user", "content": turn.text})
        messages.append({"role": "assistant", "content": turn.answer})
    return [*messages, {"role": "user", "content": content}]


def _part(uri: str, mime_type: str | None) -> dict[str, Any]:
    """Returns a part of a message; `audio_url` and `video_url` are those of vLLM, the others those of OpenAI."""
    kind = (mime_type or "image/*").partition("/")[0]
    if place_of(uri) == "data":
        if mime_type == "application/pdf":
            return {"type": "file", "file": {"filename": "document.pdf", "file_data": uri}}
        if audio_format := _AUDIO_FORMATS.get(mime_type or ""):
            return {"type": "input_audio", "input_audio": {"data": inline_parts(uri)[1], "format": audio_format}}
    name = f"{kind}_url"
    return {"type": name, name: {"url": uri}}


def read_reply(body: Mapping[str, Any], content: bytes, prompt: Prompt, model: str, usage: UsageReader) -> Reply:
    """Reads a chat completion; `content` is quoted in the error of any other object."""
    choice = next(map(mapping_of, list_of(body.get("choices"))), {})
    message = choice.get("message")
    reported = mapping_of(body.get("usage"))
    try:
        text, reasoning = texts_of(message)
    except TypeError:
        counts = (usage.tokens(reported.get(f"{name}_tokens")) or 0 for name in ("prompt", "completion"))
        raise invalid_response(content, _NO_ANSWER, tokens=Tokens(*counts)) from None
    input_tokens, of_input = usage.count(reported.get("prompt_tokens"), estimated_prompt(prompt))
    output_tokens, of_output = usage.count(reported.get("completion_tokens"), estimated_text(text + reasoning))
    if not of_input:
        # xAI, and Gemini through this API, count thoughts in the total alone, and bill them as output. Source:
        # docs.x.ai/docs/key-information/consumption-and-rate-limits, github.com/vercel/ai/pull/12425 (2026-02)
        total_tokens = usage.tokens(reported.get("total_tokens")) or 0
        output_tokens = max(output_tokens, total_tokens - input_tokens)
    details = mapping_of(reported.get("prompt_tokens_details"))
    thoughts = mapping_of(reported.get("completion_tokens_details"))
    cached_tokens = usage.cached(details.get("cached_tokens"), input_tokens)
    billed = Billed(
        tokens=Tokens(
            input_tokens,
            output_tokens,
            cached=cached_tokens,
            audio=usage.audio(details.get("audio_tokens"), None, input_tokens - cached_tokens),
            estimated=of_input + of_output,
            reasoning=min(usage.tokens(thoughts.get("reasoning_tokens")) or 0, output_tokens),
        ),
        service_tier=usage.tier(body.get("service_tier")),
    )
    reason = finish_reason_of(choice.get("finish_reason"))
    message = mapping_of(message)
    if message.get("refusal") or reason == "content_filter":
        raise RequestError(
            "blocked",
            f"answer withheld: {str_of(message.get('refusal')) or reason}",
            http_status=200,
            category=reason if reason == "content_filter" else "refusal",
            **billed,
        )
    refuse_broken_off(reason, billed)
    tokens = token_logprobs_of(mapping_of(choice.get("logprobs")).get("content"), "token", "logprob")
    return Reply(
        text=valid_text(text),
        finish_reason=FINISH_REASONS.get(reason.lower(), reason),
        **billed,
        model=name_of(body.get("model"), model),
        mean_logprob=sum(logprob for _, logprob in tokens) / len(tokens) if tokens else None,
        token_logprobs=tokens,
        reasoning=valid_text(reasoning),
    )


def texts_of(message: Any) -> tuple[str, str]:
    """Returns the text of a message, or of a part of a stream, and its reasoning.

    Reasoning models send their content as a list of parts (Mistral's Magistral, Databricks, Anthropic through
    gateways), or reasoning in a field of its own (DeepSeek and vLLM `reasoning_content`, OpenRouter `reasoning`).

    Raises:
        TypeError: It is no message.
    """
    if not isinstance(message, Mapping):
        raise TypeError("no message")
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    # vLLM has sent the same text in both.
    text, reasoning = "", "".join(dict.fromkeys(map(_all_text, map(message.get, _REASONING_FIELDS))))
    for part in parts:
        if not isinstance(part, str | Mapping | None):
            raise TypeError("no text")
        if isinstance(part, str) or mapping_of(part).get("type", "text") in _TEXT_TYPES:
            text += _all_text(part)
        else:
            reasoning += _all_text(part)
    return text, reasoning


_REASONING_FIELDS = ("reasoning_content", "reasoning")
#: Types of parts that are the answer; those of others are reasoning, such as `thinking`.
_TEXT_TYPES = frozenset({"text", "output_text"})
#: Fields of parts that hold text, or further parts.
_TEXT_FIELDS = ("text", "thinking", "reasoning", "content", "summary", "value")


def _all_text(part: Any) -> str:
    """Returns the texts of a part; its depth is that of a reply, which a few levels hold."""
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        return "".join(map(_all_text, part))
    return "".join(_all_text(part[name]) for name in _TEXT_FIELDS if name in mapping_of(part))


def refuse_broken_off(reason: str, billed: Billed) -> None:
    """Refuses an answer that the server has broken off, so that the request is sent again.

    Args:
        reason: Finish reason of the answer.
        billed: Its billed tokens.

    Raises:
        RequestError: It is one.
    """
    if reason.lower() not in FINISH_REASONS.keys() | _WHOLE:
        message = f"a 200 with an answer that the server has broken off (finish reason {reason!r})"
        raise RequestError("garbage", message, http_status=200, **billed)


def error_of(http_status: int, headers: Mapping[str, str], text: str) -> RequestError:
    """Parses an error response."""
    body = read_error(text)
    kind = kind_of_status(http_status)
    if body.code in UNPAID:
        kind = "quota_exhausted"
    # How Azure OpenAI blocks a prompt. Source: learn.microsoft.com/azure/ai-foundry/openai/concepts/content-filter
    category = body.code if body.code == "content_filter" else None
    if category is not None and http_status == 400:
        kind = "blocked"
    return error_of_response(kind, http_status, headers, body, category)
