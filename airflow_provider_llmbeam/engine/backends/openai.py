"""Servers with the OpenAI chat API: vLLM, Ollama, llama.cpp, or a hosted one."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from airflow_provider_llmbeam.engine.backends.base import Reply, kind_of_status
from airflow_provider_llmbeam.engine.backends.http import FixedAccess, HttpBackend, HttpClient, seconds_of
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.streaming import incomplete_stream, with_idle_timeout
from airflow_provider_llmbeam.spec.model import Generation, OpenAIModel

FINISH_REASONS = {"stop": "stop", "length": "max_tokens"}


class ChatBackend(HttpBackend):
    """Client of a server with chat completions.

    Args:
        http: The session.
        url: Address of the method.
        name: Name of the model, if the server does not report one.
        generation: Parameters of the answer.
        parameters: The same parameters, as fields of a request.
        error_of: Parses an error response from its status, `Retry-After` and body.
    """

    def __init__(
        self,
        http: HttpClient,
        url: str,
        name: str,
        generation: Generation,
        parameters: Mapping[str, Any],
        error_of: Callable[[int, str | None, str], RequestError],
    ) -> None:
        super().__init__(http)
        self._url = url
        self._name = name
        self._generation = generation
        self._parameters = parameters
        self._error_of = error_of

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one chat completion request."""
        body = {**self._parameters, "messages": _messages(prompt)}
        started = time.monotonic()
        async with self._http.post(self._url, body) as response:
            if response.status == 200 and self._generation.stream:
                return await self._stream(response, started)
            text = await response.text(errors="replace")
        if response.status != 200:
            raise self._error_of(response.status, response.headers.get("Retry-After"), text)
        return _reply(text, self._name)

    async def _stream(self, response: aiohttp.ClientResponse, started: float) -> Reply:
        """Assembles a streamed answer in the format of an unstreamed one."""
        first_token_seconds = None
        text, choice, usage, model = "", {"finish_reason": None}, None, None
        async for line in with_idle_timeout(aiter(response.content), self._generation.stream_idle_timeout_seconds):
            data = line.decode("utf-8", "replace").strip().removeprefix("data:").strip()
            if not line.startswith(b"data:") or data == "[DONE]":
                continue
            chunk = _chunk(data)
            usage, model = chunk.get("usage") or usage, chunk.get("model") or model
            for choice_chunk in chunk.get("choices") or []:
                delta = choice_chunk.get("delta") or {}
                text += delta.get("content") or ""
                choice["finish_reason"] = choice_chunk.get("finish_reason") or choice["finish_reason"]
            if first_token_seconds is None and text:
                first_token_seconds = time.monotonic() - started
        if (
            choice["finish_reason"] is None
        ):  # the last line is not reliable: `transformers serve` sends no "[DONE]"
            raise incomplete_stream()
        whole = {"choices": [{**choice, "message": {"content": text}}], "usage": usage, "model": model}
        reply = _reply(json.dumps(whole), self._name)
        return dataclasses.replace(reply, first_token_seconds=first_token_seconds)


class OpenAIBackend(ChatBackend):
    """Client of a model of a server with the OpenAI API.

    Raises:
        JobSpecError: The server requires an ID token, and there are no credentials that issue one.
    """

    def __init__(
        self, model: OpenAIModel, generation: Generation, output_schema: Mapping[str, Any] | None
    ) -> None:
        super().__init__(
            open_client(model),
            f"{model.base_url}/chat/completions",
            model.name,
            generation,
            _parameters(model, generation, output_schema),
            error_of,
        )


def open_client(model: OpenAIModel) -> HttpClient:
    """Opens a session with the key of the model, with ID tokens for Cloud Run, or without both.

    Raises:
        JobSpecError: There are no credentials that issue ID tokens.
    """
    if model.id_token_audience is not None:
        from airflow_provider_llmbeam.engine.backends.google_access import IdToken

        return HttpClient(model.base_url, IdToken(model.id_token_audience))
    key = os.environ.get(model.api_key_env)
    return HttpClient(model.base_url, FixedAccess({"Authorization": f"Bearer {key}"} if key else None))


def _parameters(
    model: OpenAIModel, generation: Generation, output_schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    # Newer models of OpenAI reject `max_tokens`; vLLM, Ollama and llama.cpp accept it.
    cap = "max_completion_tokens" if "api.openai.com" in model.base_url else "max_tokens"
    return {"model": model.name, **chat_parameters(generation, output_schema, cap)}


def chat_parameters(
    generation: Generation, output_schema: Mapping[str, Any] | None, cap: str = "max_tokens"
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
        "seed": generation.seed,
        "stop": list(generation.stop_sequences) or None,
        "stream": generation.stream or None,
        "stream_options": {"include_usage": True} if generation.stream else None,
        "response_format": None
        if output_schema is None
        else {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(output_schema)}},
    }
    return {name: value for name, value in given.items() if value is not None}


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    content: Any = prompt.text
    if prompt.media:
        images = [{"type": "image_url", "image_url": {"url": uri}} for uri, _ in prompt.media]
        content = [*images, {"type": "text", "text": prompt.text}]
    user = {"role": "user", "content": content}
    return [{"role": "system", "content": prompt.system}, user] if prompt.system else [user]


def _chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        raise RequestError("garbage", f"a streamed chunk is not JSON: {data[:500]}", http_status=200) from None
    if not isinstance(chunk, dict):
        raise RequestError("garbage", f"a streamed chunk is not an object: {data[:500]}", http_status=200)
    if "error" in chunk:
        raise error_of(500, None, data)
    return chunk


def _reply(text: str, model: str) -> Reply:
    try:
        body = json.loads(text)
        choice = body["choices"][0]
        message, usage = choice["message"], body.get("usage") or {}
        content, refusal = message.get("content") or "", message.get("refusal")
        input_tokens, output_tokens = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        if not isinstance(content, str):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError):
        raise RequestError("garbage", f"a 200 that is no chat completion: {text[:500]}", http_status=200) from None
    reason = choice.get("finish_reason") or "stop"
    if refusal or reason == "content_filter":
        raise RequestError(
            "blocked",
            f"answer withheld: {refusal or reason}",
            http_status=200,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )
    return Reply(
        text=content,
        finish_reason=FINISH_REASONS.get(reason, reason),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        model=body.get("model") or model,
    )


def error_of(http_status: int, retry_after: str | None, text: str) -> RequestError:
    """Parses an error response."""
    message, code = text, None
    try:
        body = json.loads(text)
        message = body.get("detail") or text  # FastAPI, as used by `transformers serve`
        message, code = body["error"]["message"], body["error"].get("code")
    except (ValueError, LookupError, TypeError, AttributeError):
        pass  # keeps the text of the server
    kind = kind_of_status(http_status)
    if code == "insufficient_quota":
        kind = "quota_exhausted"
    return RequestError(kind, str(message), http_status=http_status, retry_after_seconds=seconds_of(retry_after))
