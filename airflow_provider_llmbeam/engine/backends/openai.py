"""Any server that speaks the OpenAI chat API: vLLM, Ollama, llama.cpp, or a hosted one."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from airflow_provider_llmbeam.engine.backends.base import Reply, kind_of_status
from airflow_provider_llmbeam.engine.backends.http import FixedAccess, HttpClient, seconds_of
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.streaming import broken_off, unless_stalled
from airflow_provider_llmbeam.spec.model import Generation, OpenAIModel

FINISH_REASONS = {"stop": "stop", "length": "max_tokens"}


class ChatBackend:
    """One session with a server that takes chat completions.

    Args:
        http: The session.
        url: Of the method.
        name: Of the model, where the server does not say.
        generation: Parameters of the answer.
        parameters: The same as part of a request.
        error_of: Reads an error: its status, `Retry-After`, and body.
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
        self._http = http
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
        """Puts a streamed answer together in the shape of a whole one."""
        first_token_seconds = None
        text, choice, usage, model = "", {"finish_reason": None}, None, None
        async for line in unless_stalled(aiter(response.content), self._generation.stream_idle_timeout_seconds):
            data = line.decode("utf-8", "replace").strip().removeprefix("data:").strip()
            if not line.startswith(b"data:") or data == "[DONE]":
                continue
            piece = _piece(data)
            usage, model = piece.get("usage") or usage, piece.get("model") or model
            for choice_piece in piece.get("choices") or []:
                delta = choice_piece.get("delta") or {}
                text += delta.get("content") or ""
                choice["finish_reason"] = choice_piece.get("finish_reason") or choice["finish_reason"]
            if first_token_seconds is None and text:
                first_token_seconds = time.monotonic() - started
        if choice["finish_reason"] is None:  # the last line is no sign: `transformers serve` sends no "[DONE]"
            raise broken_off()
        whole = {"choices": [{**choice, "message": {"content": text}}], "usage": usage, "model": model}
        reply = _reply(json.dumps(whole), self._name)
        return dataclasses.replace(reply, first_token_seconds=first_token_seconds)

    async def aclose(self) -> None:
        """Closes the session."""
        await self._http.aclose()


class OpenAIBackend(ChatBackend):
    """A model of a server that speaks the OpenAI API.

    Raises:
        JobSpecError: The server wants an ID token, and there are no credentials that make one.
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
    """Opens a client with the model's key, with ID tokens where it is on Cloud Run, or without both.

    Raises:
        JobSpecError: There are no credentials that make ID tokens.
    """
    if model.id_token_audience is not None:
        from airflow_provider_llmbeam.engine.backends.google_access import IdToken

        return HttpClient(model.base_url, IdToken(model.id_token_audience))
    key = os.environ.get(model.api_key_env)
    return HttpClient(model.base_url, FixedAccess({"Authorization": f"Bearer {key}"} if key else None))


def _parameters(
    model: OpenAIModel, generation: Generation, output_schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    # OpenAI's own newer models refuse `max_tokens`; vLLM, Ollama and llama.cpp all take it.
    cap = "max_completion_tokens" if "api.openai.com" in model.base_url else "max_tokens"
    return {"model": model.name, **chat_parameters(generation, output_schema, cap)}


def chat_parameters(
    generation: Generation, output_schema: Mapping[str, Any] | None, cap: str = "max_tokens"
) -> dict[str, Any]:
    """The part of a request that is the same for all prompts.

    Args:
        generation: Parameters of the answer.
        output_schema: JSON Schema of the answer.
        cap: What the server calls the longest answer.
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


def _piece(data: str) -> dict[str, Any]:
    try:
        piece = json.loads(data)
    except ValueError:
        raise RequestError("garbage", f"a streamed piece is not JSON: {data[:500]}", http_status=200) from None
    if not isinstance(piece, dict):
        raise RequestError("garbage", f"a streamed piece is no object: {data[:500]}", http_status=200)
    if "error" in piece:
        raise error_of(500, None, data)
    return piece


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
    """Reads an error response."""
    message, code = text, None
    try:
        body = json.loads(text)
        message = body.get("detail") or text  # FastAPI's own, as of `transformers serve`
        message, code = body["error"]["message"], body["error"].get("code")
    except (ValueError, LookupError, TypeError, AttributeError):
        pass  # what is known so far are the server's words
    kind = kind_of_status(http_status)
    if code == "insufficient_quota":
        kind = "quota_exhausted"
    return RequestError(kind, str(message), http_status=http_status, retry_after_seconds=seconds_of(retry_after))
