"""The Gemini API, on the paths of Google AI Studio (Developer) and of Vertex AI."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.records import ReceivedMedia
from llmbeam_sandbox.core.responses import (
    EVENT_STREAM_TYPE,
    JSON_TYPE,
    Reply,
    encoded,
    error_info,
    google_error,
    json_reply,
    read_object,
    send,
)
from llmbeam_sandbox.models.answers import (
    Answer,
    count_tokens,
    pieces,
    prompt_sha256,
)
from llmbeam_sandbox.models.cached_contents import CachedContent, CachedContents, missing
from llmbeam_sandbox.models.calls import ModelCall, RefusedError, asked_tier
from llmbeam_sandbox.models.catalog import gemini_names, is_gemini
from llmbeam_sandbox.models.gemini_fields import (
    check_parameters,
    field,
    labels_of,
    max_output_tokens,
    reported,
    schema_of,
    searches,
)
from llmbeam_sandbox.models.media import (
    FindUpload,
    MediaRefusedError,
    gemini_media,
    is_gemini_media,
    tokens_by_modality,
)
from llmbeam_sandbox.models.quota import Rejection
from llmbeam_sandbox.models.quota_errors import quota_exceeded
from llmbeam_sandbox.models.server import ModelServer

TIER_HEADER = "X-Vertex-AI-LLM-Shared-Request-Type"
"""Header in which Vertex AI takes the tier; only the location `global` evaluates it."""
REQUEST_TYPE_HEADER = "X-Vertex-AI-LLM-Request-Type"
"""Header in which Vertex AI takes "dedicated" for Provisioned Throughput alone, and "shared" to go past it."""
BLOCK_MARKER = "[[block]]"
"""Marker of prompts that the emulated safety filter blocks."""
METHODS = Methods(
    names=("gemini.generateContent", "gemini.streamGenerateContent", "gemini.countTokens"),
    streaming=frozenset({"gemini.streamGenerateContent"}),
)
_PATH = re.compile(
    r"/(?P<version>v1|v1beta|v1beta1)/"
    r"(?:(?P<project>projects/[^/]+/locations/[^/]+/)?(?P<publisher>publishers/[^/]+)/)?"
    r"models/(?P<model>[^/:]+):(?P<verb>generateContent|streamGenerateContent|countTokens)"
)
_METHODS: Mapping[str, Method] = {
    "generateContent": "gemini.generateContent",
    "streamGenerateContent": "gemini.streamGenerateContent",
    "countTokens": "gemini.countTokens",
}
_NOT_WITH_CACHE = (
    "CachedContent can not be used with GenerateContent request setting system_instruction, tools or tool_config."
    "\n\nProposed fix: move those values to CachedContent from GenerateContent request."
)
_TRAFFIC_TYPES: Mapping[str, str] = {"standard": "ON_DEMAND", "provisioned": "PROVISIONED_THROUGHPUT"}
_ROLES = frozenset({"", "user", "model", "function", "tool"})
_NO_KEY = (
    "Method doesn't allow unregistered callers (callers without established identity). Please use API "
    "Key or other form of API consumer identity to call this API."
)
_NO_TOKEN = (
    "Request is missing required authentication credential. Expected OAuth 2 access token, login cookie "
    "or other valid authentication credential. See "
    "https://developers.google.com/identity/sign-in/web/devconsole-project."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiDialect:
    """One Gemini method on one model.

    Attributes:
        method: Method called.
        model: Model name in the path.
        version: Version of the API in the path.
        publisher: "publishers/…" on Vertex AI paths, "" on Developer paths.
        project: "projects/…/locations/…/"; "" on Developer paths and in Vertex AI's express mode.
        is_sse: Whether a stream is sent as server-sent events, not as one JSON array.
        input_token_limit: Longest prompt that the model accepts, in tokens.
        any_model: Whether models that are not in the catalogue answer, too.
        caches: Cached contents that requests may name; None for batch inference.
        find_upload: Finds the files of the Files API that requests may name; None for batch inference.
    """

    method: Method
    model: str
    version: str
    publisher: str
    project: str
    is_sse: bool
    input_token_limit: int
    any_model: bool = True
    caches: CachedContents | None = None
    find_upload: FindUpload | None = None

    @property
    def is_metered(self) -> bool:
        """Whether a call is charged to the quota, takes time and is billed."""
        return self.method != "gemini.countTokens"

    @property
    def location(self) -> str:
        """Location of the quota that a call is charged to; "" on Developer and express paths."""
        return self.project.split("/")[3] if self.project else ""

    @property
    def resource(self) -> str:
        """Project and location; "" on Developer and express paths."""
        return self.project.rstrip("/")

    def read(self, request: web.Request, body: bytes) -> ModelCall:
        """Reads and checks a request; raises `RefusedError` when the service would refuse it."""
        self.authenticate(request)
        call, tier = self.parse(body), asked_tier(request.headers.get(TIER_HEADER))
        asked_type = request.headers.get(REQUEST_TYPE_HEADER, "") if self.project else ""
        return replace(call, asked_type=asked_type, tier=tier if self.location == "global" else call.tier)

    def parse(self, body: bytes) -> ModelCall:
        """Reads and checks a body; raises `RefusedError` when the service would refuse it."""
        self.check_model()
        try:
            fields = read_object(body)
            call = self._call(fields.get("generateContentRequest") or fields)
        except (ValueError, TypeError, AttributeError) as error:
            message = f"Invalid JSON payload received. {error}"
            raise RefusedError(google_error(400, message)) from error
        if self.is_metered and call.input_tokens > self.input_token_limit:
            raise RefusedError(google_error(400, self._too_long(call.input_tokens)))
        return call

    def check_model(self) -> None:
        """Checks that the model is served; raises `RefusedError`."""
        if not (self.model.startswith(("gemini", "gemma")) if self.any_model else is_gemini(self.model)):
            raise RefusedError(google_error(404, self.not_found()))

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns the reply with an answer."""
        if self.method == "gemini.countTokens":
            return json_reply(self._token_count(call))
        common = {"modelVersion": call.model, "responseId": answer_id}
        if self.publisher:
            common["createTime"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        if call.is_blocked:
            return self._framed([{"promptFeedback": {"blockReason": "SAFETY"}, **self._usage(call, 0), **common}])
        parts = pieces(answer.text) if call.is_streamed else [answer.text]
        reason = "MAX_TOKENS" if answer.is_cut else "STOP"
        bodies = [{"candidates": [_candidate(part)], **common} for part in parts]
        bodies[-1] = {
            "candidates": [_candidate(parts[-1], reason) | reported(call, answer)],
            **self._usage(call, answer.output_tokens),
            **common,
        }
        return self._framed(bodies)

    def error(self, http_status: int, message: str) -> Reply:
        """Returns the reply with an error; an empty message gives the service's usual one."""
        return google_error(http_status, message)

    def quota_exceeded(self, call: ModelCall, rejection: Rejection | None, delay: float | None) -> Reply:
        """Returns a 429."""
        return quota_exceeded(
            model=call.model, is_vertex=bool(self.publisher), rejection=rejection, delay_seconds=delay
        )

    def stream_error(self, reply: Reply, error: Reply) -> Reply:
        """Returns the reply with an error after the first chunk."""
        chunk = _event(error.body) if self.is_sse else b",\r\n" + error.body + b"]"
        return Reply(
            chunks=(reply.chunks[0].removesuffix(b"]"), chunk),
            content_type=reply.content_type,
            is_streamed=True,
        )

    def authenticate(self, request: web.Request) -> None:
        """Checks the key or the token; raises `RefusedError`."""
        if self.project:
            if not request.headers.get("Authorization", "").startswith("Bearer "):
                info = error_info("CREDENTIALS_MISSING", service="aiplatform.googleapis.com")
                raise RefusedError(google_error(401, _NO_TOKEN, (info,)))
            return
        key = request.headers.get("x-goog-api-key") or request.query.get("key")
        if not key:
            raise RefusedError(google_error(403, _NO_KEY))
        if key.startswith("invalid"):
            info = error_info("API_KEY_INVALID", service="generativelanguage.googleapis.com")
            message = "API key not valid. Please pass a valid API key."
            raise RefusedError(google_error(400, message, (info,)))

    def _call(self, fields: Mapping[str, Any]) -> ModelCall:
        cache = self._cache(fields)
        contents = field(fields, "contents") or []
        contents = [contents] if isinstance(contents, Mapping) else contents
        if not contents:
            message = "* GenerateContentRequest.contents: contents is not specified\n"
            raise RefusedError(google_error(400, message))
        if any((content.get("role") or "") not in _ROLES for content in contents):
            raise RefusedError(google_error(400, "Please use a valid role: user, model."))
        media = tuple(
            found
            for content in contents
            for part in content.get("parts") or ()
            if (found := self._media(part)) is not None
        )
        prompt, system = _text(contents), _text([field(fields, "systemInstruction") or {}])
        if cache is not None:
            prompt, system = cache.prompt + prompt, cache.system
        input_tokens = count_tokens(prompt) + count_tokens(system) + sum(file.tokens for file in media)
        prompt = "\n".join([*map(str, media), prompt])
        config = field(fields, "generationConfig") or {}
        mime_type = field(config, "responseMimeType") or "text/plain"
        check_parameters(fields, config, self.model, is_vertex=bool(self.publisher))
        return ModelCall(
            model=self.model,
            prompt=prompt,
            system=system,
            input_tokens=input_tokens,
            prompt_sha256=prompt_sha256(prompt, system),
            schema=schema_of(config, mime_type),
            is_enum=mime_type == "text/x.enum",
            max_output_tokens=max_output_tokens(config),
            is_streamed=self.method == "gemini.streamGenerateContent",
            is_blocked=BLOCK_MARKER in prompt,
            media=media,
            cached_tokens=min(input_tokens, cache.tokens) if cache else 0,
            labels=labels_of(fields, is_vertex=bool(self.publisher)),
            tier="standard" if self.publisher else asked_tier(field(fields, "serviceTier")),
            has_logprobs=bool(field(config, "responseLogprobs")),
            searches=searches(fields),
            turns=tuple(_text([content]) for content in contents) if len(contents) > 1 else (),
        )

    def _cache(self, fields: Mapping[str, Any]) -> CachedContent | None:
        """Returns the cached content that a request names; raises `RefusedError`."""
        name = field(fields, "cachedContent")
        if not name:
            return None
        if any(field(fields, name) for name in ("systemInstruction", "tools", "toolConfig")):
            raise RefusedError(google_error(400, _NOT_WITH_CACHE))
        cache = self.caches.named(str(name)) if self.caches else None
        if cache is None or cache.name.startswith("projects/") != bool(self.project):
            error = missing(str(name))
            raise RefusedError(google_error(error.http_status, error.message))
        if cache.model != self.model:
            message = (
                f"Model used by GenerateContent request (models/{self.model}) and CachedContent "
                f"(models/{cache.model}) has to be the same."
            )
            raise RefusedError(google_error(400, message))
        return cache

    def _media(self, part: Mapping[str, Any]) -> ReceivedMedia | None:
        try:
            return gemini_media(part, is_vertex=bool(self.publisher), find_upload=self.find_upload)
        except MediaRefusedError as refused:
            raise RefusedError(google_error(refused.http_status, str(refused))) from None

    def not_found(self) -> str:
        """Returns the message for an unknown model."""
        if self.publisher:
            return (
                f"Publisher Model `{self.project}{self.publisher}/models/{self.model}` was not found or your "
                "project does not have access to it. Please ensure you are using a valid model version."
            )
        return (
            f"models/{self.model} is not found for API version {self.version}, or is not supported for "
            f"{self.method.removeprefix('gemini.')}. Call ListModels to see the list of available models and "
            "their supported methods."
        )

    def _too_long(self, tokens: int) -> str:
        return (
            f"The input token count ({tokens}) exceeds the maximum number of tokens allowed "
            f"({self.input_token_limit})."
        )

    def _token_count(self, call: ModelCall) -> dict[str, Any]:
        details = tokens_by_modality(call.input_tokens, call.media)
        counted: dict[str, Any] = {"totalTokens": call.input_tokens, "promptTokensDetails": details}
        if self.publisher:
            counted["totalBillableCharacters"] = sum(len("".join(t.split())) for t in (call.prompt, call.system))
        return counted

    def _usage(self, call: ModelCall, output_tokens: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "promptTokenCount": call.input_tokens,
            "totalTokenCount": call.input_tokens + output_tokens,
            "promptTokensDetails": tokens_by_modality(call.input_tokens, call.media),
        }
        if call.cached_tokens:
            usage["cachedContentTokenCount"] = call.cached_tokens
        if output_tokens:
            usage["candidatesTokenCount"] = output_tokens
        if self.publisher:
            usage["trafficType"] = _TRAFFIC_TYPES.get(call.tier, f"ON_DEMAND_{call.tier.upper()}")
        else:
            usage["serviceTier"] = call.tier
        return {"usageMetadata": usage}

    def _framed(self, bodies: list[dict[str, Any]]) -> Reply:
        if self.method != "gemini.streamGenerateContent":
            return json_reply(bodies[0])
        chunks = [encoded(body) for body in bodies]
        if self.is_sse:
            return Reply(chunks=tuple(map(_event, chunks)), content_type=EVENT_STREAM_TYPE, is_streamed=True)
        array = [(b",\r\n" if index else b"[") + chunk for index, chunk in enumerate(chunks)]
        array[-1] += b"]"
        return Reply(chunks=tuple(array), content_type=JSON_TYPE, is_streamed=True)


def find_dialect(
    request: web.Request,
    *,
    input_token_limit: int,
    any_model: bool = True,
    caches: CachedContents | None = None,
    find_upload: FindUpload | None = None,
) -> GeminiDialect | None:
    """Returns the dialect for the path of a request; None for other paths than Gemini's."""
    match = _PATH.fullmatch(request.path)
    if match is None:
        return None
    return GeminiDialect(
        method=_METHODS[match["verb"]],
        model=match["model"],
        version=match["version"],
        publisher=match["publisher"] or "",
        project=match["project"] or "",
        is_sse=request.query.get("alt") == "sse",
        input_token_limit=input_token_limit,
        any_model=any_model,
        caches=caches,
        find_upload=find_upload,
    )


def routes(server: ModelServer, caches: CachedContents, find_upload: FindUpload) -> list[web.RouteDef]:
    """Returns the routes of the Gemini API; the last of an application, as they match every POST."""

    async def serve(request: web.Request) -> web.StreamResponse:
        settings = server.settings
        dialect = find_dialect(
            request,
            input_token_limit=settings.input_token_limit,
            any_model=settings.any_model,
            caches=caches,
            find_upload=find_upload,
        )
        if dialect is None:
            reply = google_error(404, f"The requested URL {request.path} was not found on this server.")
            return web.Response(status=404, body=reply.body, headers=reply.all_headers())
        return await server.serve(request, dialect)

    async def list_models(request: web.Request) -> web.StreamResponse:
        lister = GeminiDialect(
            method="gemini.countTokens",
            model="",
            version=request.match_info["version"],
            publisher="",
            project="",
            is_sse=False,
            input_token_limit=server.settings.input_token_limit,
        )
        try:
            lister.authenticate(request)
        except RefusedError as refused:
            return await send(request, refused.reply)
        models = [{"name": f"models/{name}", "version": "001"} for name in gemini_names()]
        return await send(request, json_reply({"models": models}))

    return [web.get("/{version:v1beta}/models", list_models), web.post("/{path:.*}", serve)]


def cache_texts(fields: Mapping[str, Any]) -> tuple[str, str, int]:
    """Returns the text, the system text and the tokens of a cached content."""
    prompt, system = _text(fields.get("contents") or ()), _text([fields.get("systemInstruction") or {}])
    return prompt, system, count_tokens(prompt) + count_tokens(system)


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\r\n\r\n"


def _candidate(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}
    if finish_reason:
        candidate["finishReason"] = finish_reason
    return candidate


def _text(contents: Iterable[Mapping[str, Any]]) -> str:
    parts = [part for content in contents for part in content.get("parts") or ()]
    return "\n".join(
        part["text"] if "text" in part else json.dumps(part, sort_keys=True)
        for part in parts
        if not is_gemini_media(part)
    )
