"""Gemini through google-genai, on Vertex AI and on the Developer API."""

from __future__ import annotations

import dataclasses
import mimetypes
import os
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import google.auth
import httpx
from google import genai
from google.auth.exceptions import GoogleAuthError, TransportError
from google.genai import errors, types

from airflow_provider_llmbeam.engine.backends.base import Reply, kind_of_status
from airflow_provider_llmbeam.engine.backends.http import open_session
from airflow_provider_llmbeam.engine.outcome import FailureKind
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.streaming import broken_off, unless_stalled
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.model import GeminiModel, Generation

#: Where a proxy must lead to when no `base_url` is given.
_GOOGLE = "https://aiplatform.googleapis.com"
_FINISH_REASONS = {"STOP": "stop", "MAX_TOKENS": "max_tokens"}
_CONNECTION_ERRORS = (aiohttp.ClientError, httpx.HTTPError, TransportError, OSError)


class GeminiBackend:
    """One asynchronous google-genai client.

    Raises:
        JobSpecError: No `project` and no `GOOGLE_API_KEY`, or `project` and no Google credentials.
    """

    def __init__(
        self, model: GeminiModel, generation: Generation, output_schema: Mapping[str, Any] | None
    ) -> None:
        self._model = model
        self._generation = generation
        self._access = _access(model)
        self._client: genai.Client | None = None
        self._session: aiohttp.ClientSession | None = None
        self._config = _config(generation, output_schema)

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one `generateContent` request."""
        config = self._config
        if prompt.system:
            config = config.model_copy(update={"system_instruction": prompt.system})
        try:
            contents = _contents(prompt)
        except ValueError as error:
            raise RequestError("bad_request", str(error)) from None
        send = self._stream if self._generation.stream else self._generate
        try:
            return await send(contents, config)
        except errors.APIError as error:
            raise _from_api_error(error) from None
        except _CONNECTION_ERRORS as error:
            raise RequestError("connection", f"{type(error).__name__}: {error}") from None
        except GoogleAuthError as error:
            raise RequestError("unauthorized", f"{type(error).__name__}: {error}") from None
        except ValueError as error:
            # A 200 whose body is not JSON surfaces as a bare JSONDecodeError, one of another shape as a
            # ValidationError; both are ValueErrors.
            raise RequestError("garbage", f"{type(error).__name__}: {error}", http_status=200) from None

    async def _generate(self, contents: types.Content, config: types.GenerateContentConfig) -> Reply:
        response = await self._open().aio.models.generate_content(
            model=self._model.name, contents=contents, config=config
        )
        return _reply(response, self._model.name)

    async def _stream(self, contents: types.Content, config: types.GenerateContentConfig) -> Reply:
        started, first_token_seconds, texts, last = time.monotonic(), None, [], None
        pieces = await self._open().aio.models.generate_content_stream(
            model=self._model.name, contents=contents, config=config
        )
        async for last in unless_stalled(pieces, self._generation.stream_idle_timeout_seconds):
            texts.append(_text(last))
            if first_token_seconds is None and texts[-1]:
                first_token_seconds = time.monotonic() - started
        if last is None or not (_finish_reason(last) or last.prompt_feedback):
            raise broken_off()
        reply = _reply(last, self._model.name, "".join(texts))
        return dataclasses.replace(reply, first_token_seconds=first_token_seconds)

    async def aclose(self) -> None:
        """Closes the client's connections."""
        if self._client is not None and self._session is not None:
            await self._client.aio.aclose()
            await self._session.close()

    def _open(self) -> genai.Client:
        """Opens the client on first use: its session belongs to the loop that runs it."""
        if self._client is None:
            self._session = open_session(self._model.base_url or _GOOGLE)
            http_options = types.HttpOptions(
                base_url=self._model.base_url,
                # Without any retry_options the async client re-sends once, silently, after a dropped connection;
                # with its own retries it would ignore Retry-After and RetryInfo.
                retry_options=types.HttpRetryOptions(attempts=1),
                aiohttp_client=self._session,
            )
            self._client = genai.Client(**self._access, http_options=http_options)
        return self._client


def _access(model: GeminiModel) -> dict[str, Any]:
    """What the client needs to be let in: a key, or a project and credentials."""
    if not model.project:
        return {"vertexai": False, "api_key": _api_key()}
    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except GoogleAuthError as error:
        raise JobSpecError(
            f"Vertex AI (`model.project` {model.project!r}) needs Google credentials: {error} Nothing was sent or "
            "billed."
        ) from error
    return {"vertexai": True, "project": model.project, "location": model.location, "credentials": credentials}


def _api_key() -> str:
    if key := os.environ.get("GOOGLE_API_KEY") or os.environ.get("GEMINI_API_KEY"):
        return key
    raise JobSpecError(
        "Gemini needs `GOOGLE_API_KEY` in the environment, e.g. from an `llmbeam` connection (Developer API), or "
        "`model.project` (Vertex AI); found neither. Nothing was sent or billed."
    )


def _config(generation: Generation, output_schema: Mapping[str, Any] | None) -> types.GenerateContentConfig:
    budget = generation.thinking_budget_tokens
    return types.GenerateContentConfig(
        max_output_tokens=generation.max_output_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        seed=generation.seed,
        stop_sequences=list(generation.stop_sequences) or None,
        thinking_config=None if budget is None else types.ThinkingConfig(thinking_budget=budget),
        response_mime_type="application/json" if output_schema is not None else None,
        response_json_schema=dict(output_schema) if output_schema is not None else None,
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )


def _contents(prompt: Prompt) -> types.Content:
    media = [
        types.Part.from_uri(file_uri=uri, mime_type=mime_type or mimetypes.guess_type(uri)[0])
        for uri, mime_type in prompt.media
    ]
    return types.Content(role="user", parts=[*media, types.Part.from_text(text=prompt.text)])


def _text(response: types.GenerateContentResponse) -> str:
    content = response.candidates[0].content if response.candidates else None
    return "".join(part.text for part in (content and content.parts) or [] if part.text and not part.thought)


def _finish_reason(response: types.GenerateContentResponse) -> str | None:
    reason = response.candidates[0].finish_reason if response.candidates else None
    return reason.name if reason else None


def _reply(response: types.GenerateContentResponse, model: str, text: str | None = None) -> Reply:
    usage = response.usage_metadata
    input_tokens = (usage and usage.prompt_token_count) or 0
    output_tokens = ((usage and usage.candidates_token_count) or 0) + ((usage and usage.thoughts_token_count) or 0)

    def refused(kind: FailureKind, message: str) -> RequestError:
        return RequestError(kind, message, http_status=200, input_tokens=input_tokens, output_tokens=output_tokens)

    if not response.candidates:
        feedback = response.prompt_feedback
        if feedback is None or feedback.block_reason is None:
            raise refused("garbage", "a 200 with neither candidates nor a block reason")
        raise refused(
            "blocked", f"prompt blocked: {feedback.block_reason.name} {feedback.block_reason_message or ''}"
        )
    candidate = response.candidates[0]
    reason = _finish_reason(response) or "STOP"
    if reason not in _FINISH_REASONS:
        raise refused("blocked", f"answer withheld: {reason} {candidate.finish_message or ''}")
    return Reply(
        text=_text(response) if text is None else text,
        finish_reason=_FINISH_REASONS[reason],
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        model=response.model_version or model,
    )


def _from_api_error(error: errors.APIError) -> RequestError:
    """Keeps what matters: the client's own error neither pickles nor says when to come back."""
    details = _details(error)
    kind = kind_of_status(error.code)
    if any(item.get("reason") == "API_KEY_INVALID" for item in details):
        kind = "unauthorized"
    if kind == "throttled" and _is_per_day(details):
        kind = "quota_exhausted"
    return RequestError(
        kind,
        error.message or str(error),
        http_status=error.code,
        retry_after_seconds=_retry_after_seconds(error, details),
    )


def _details(error: errors.APIError) -> list[dict[str, Any]]:
    body = error.details if isinstance(error.details, dict) else {}
    inner = body.get("error", body)
    found = inner.get("details") if isinstance(inner, dict) else None
    return [item for item in found or [] if isinstance(item, dict)]


def _is_per_day(details: list[dict[str, Any]]) -> bool:
    return any(
        "PerDay" in str(violation.get("quotaId", ""))
        for item in details
        for violation in item.get("violations", [])
    )


def _retry_after_seconds(error: errors.APIError, details: list[dict[str, Any]]) -> float | None:
    """Reads the header, else `RetryInfo` in the body: Gemini sends only the latter, with a fraction."""
    headers = getattr(error.response, "headers", None) or {}
    delays = [
        item["retryDelay"]
        for item in details
        if str(item.get("@type", "")).endswith("RetryInfo") and "retryDelay" in item
    ]
    for text in (headers.get("retry-after"), *delays):
        try:
            return max(0.0, float(str(text).removesuffix("s")))
        except ValueError:
            continue
    return None
