"""Gemini on Vertex AI and on the Developer API.

The requests are google-genai's; the transport is aiohttp. Per request google-genai's client takes 0.78 ms of CPU,
0.3 ms of it to convert a configuration that never changes within a job; this client takes 0.3 ms in all (3,000
requests at 200 ms, 128 in flight, one core), so that one event loop sends more requests.

The responses are read field by field. google-genai's types refuse a whole answer for one field that is not read
here, and list every fault: 1 MB of faults took 7 s and 540 MB (google-genai 2.34).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_llmbeam.engine.backend import ON_TEXT, Reply, error_of_response, kind_of_status
from airflow_provider_llmbeam.engine.media.data_uri import inline_parts
from airflow_provider_llmbeam.engine.prefix import CachedHead
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
    UsageReader,
    estimated_prompt,
    estimated_text,
    finish_reason_of,
    json_object,
    logprob_of,
    name_of,
    token_logprobs_of,
)
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.facts import VERTEX_TIER_HEADERS
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.model import GeminiModel, Generation
from airflow_provider_llmbeam.spec.model.media import place_of
from airflow_provider_llmbeam.spec.model.tier import AskedTier
from airflow_provider_llmbeam.transport.server_reply import (
    list_of,
    mapping_of,
    read_error,
    str_of,
)

if TYPE_CHECKING:
    from google.genai import types

_log = logging.getLogger("llmbeam")

EnumT = TypeVar("EnumT", bound=Enum)

_FINISH_REASONS = {"STOP": "stop", "MAX_TOKENS": "max_tokens"}
#: Finish reasons by which the content of an answer is withheld; any other one says nothing of the content, such as
#: `OTHER`, `MALFORMED_RESPONSE` and `UNEXPECTED_TOOL_CALL`, and the same request may be answered.
#: Source: ai.google.dev/api/generate-content, `FinishReason` (2026-11)
_WITHHELD = re.compile("SAFETY|RECITATION|LANGUAGE|BLOCKLIST|PROHIBITED_CONTENT|SPII|MODEL_ARMOR")
_NO_ANSWER = "no answer"


class GeminiBackend(HttpBackend):
    """Client of a Gemini model.

    Args:
        model: The model.
        generation: Parameters of the answer.
        output_schema: JSON Schema of the answer.
        cached: Cached content with the head of the prompts. Once it is refused, as it has expired or was deleted,
            every prompt is sent whole.
        asked_tier: Tier that requests ask for.
        as_batch: Whether requests have the configuration of batch inference, as those before and after it.

    Raises:
        JobSpecError: No `project` and no `GOOGLE_API_KEY`, or `project` and no Google credentials.
    """

    def __init__(
        self,
        model: GeminiModel,
        generation: Generation,
        output_schema: Mapping[str, Any] | None,
        cached: CachedHead | None = None,
        *,
        asked_tier: AskedTier = "standard",
        as_batch: bool = False,
    ) -> None:
        self._model = model
        self._cached = cached
        self._generation = generation
        self._url = (
            f"{model.address}:{'streamGenerateContent?alt=sse' if generation.stream else 'generateContent'}"
        )
        self._config = generation_config(generation, output_schema, as_batch=as_batch)
        self._usage = UsageReader(model.name, "flex" if asked_tier == "provisioned_then_flex" else asked_tier)
        self._fields = constant_fields(generation)
        if model.labels:
            self._fields["labels"] = model.labels
        if asked_tier != "standard" and not model.project:
            self._fields["serviceTier"] = asked_tier
        headers = VERTEX_TIER_HEADERS[asked_tier] if model.project else {}
        super().__init__(HttpClient(self._url, open_access(model), headers))

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one `generateContent` request, and a second one inline if the cache of the first one is gone."""
        cached = self._cached
        rest = None if cached is None else cached.head.rest_of(prompt)
        if cached is not None and rest is not None:
            body = request_body(replace(prompt, text=rest, system=None), self._config)
            try:
                return await self._send(prompt, {**body, "cachedContent": cached.name, **self._fields})
            except RequestError as error:
                if not is_cache_gone(error):
                    raise
                self._cached = None
        return await self._send(prompt, {**request_body(prompt, self._config), **self._fields})

    async def _send(self, prompt: Prompt, request: Mapping[str, Any]) -> Reply:
        started = time.monotonic()
        async with self._http.post(self._url, encoded(request) if prompt.media else request) as response:
            if response.status != 200:
                raise error_of(response.status, response.headers, await response.error_text())
            if self._generation.stream:
                return await self._stream(response, prompt, started)
            body = json_object(await response.read(), _NO_ANSWER, error_of, response.headers)
            return read_reply(body, prompt, self._model.name, self._usage)

    async def _stream(self, response: Response, prompt: Prompt, started: float) -> Reply:
        first_token_seconds, text, thoughts = None, StreamedText(ON_TEXT.get()), StreamedText()
        last: dict[str, Any] = {}
        async for line in with_idle_timeout(response.lines(), self._generation.stream_idle_timeout_seconds):
            if not line.startswith(b"data:"):
                continue
            chunk = json_object(line.removeprefix(b"data:").strip(), NO_CHUNK, error_of, response.headers)
            # After the end of the answer, a chunk may have the usage alone.
            has_ended = _candidate(last).get("finishReason") and not _candidate(chunk)
            last = {**last, **chunk} if has_ended else chunk
            for found, piece in zip((text, thoughts), _texts(chunk), strict=True):
                found.add(piece)
            if first_token_seconds is None and text:
                first_token_seconds = time.monotonic() - started
        if not (_candidate(last).get("finishReason") or last.get("promptFeedback")):
            raise incomplete_stream()
        reply = read_reply(last, prompt, self._model.name, self._usage, (text.whole(), thoughts.whole()))
        return replace(reply, first_token_seconds=first_token_seconds)


open_backend = GeminiBackend


def is_cache_gone(error: RequestError) -> bool:
    """Returns whether a request with a cached content was refused, unbilled, for a reason that may be the cache.

    The Developer API answers 403 and Vertex AI 404; of an expired one Vertex AI also says 400 "is expired".
    """
    if error.http_status == 400:
        return "expired" in error.message and "cache" in error.message.lower()
    return error.http_status in (403, 404)


def generation_config(
    generation: Generation, output_schema: Mapping[str, Any] | None, *, as_batch: bool = False
) -> dict[str, Any]:
    """Returns the configuration that is the same in all requests of a job.

    Args:
        generation: Parameters of the answer.
        output_schema: JSON Schema of the answer.
        as_batch: Whether it is that of batch inference, see `gemini_schema`.
    """
    from google.genai import types  # takes 0.4 s of CPU, which jobs without Gemini need not spend

    config = types.GenerationConfig(
        max_output_tokens=generation.max_output_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        seed=generation.seed,
        stop_sequences=list(generation.stop_sequences) or None,
        thinking_config=_thinking_config(generation),
        media_resolution=_enum(types.MediaResolution, "MEDIA_RESOLUTION_", generation.media_resolution),
        response_logprobs=bool(generation.logprobs) or None,
        response_mime_type="application/json" if output_schema is not None else None,
        response_json_schema=dict(output_schema) if output_schema is not None else None,
    )
    fields = config.model_dump(by_alias=True, exclude_none=True)
    if as_batch and output_schema is not None and (converted := gemini_schema(output_schema)) is not None:
        del fields["responseJsonSchema"]
        fields["responseSchema"] = converted
    return fields


def gemini_schema(output_schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a JSON Schema as an OpenAPI schema; `None` if that cannot express it.

    With `responseJsonSchema` batch inference gave degenerate answers (0 of 502 valid, ruby_llm#894), while
    `responseSchema` works. Every answer is validated against the JSON Schema afterwards, whatever was sent.
    """
    from google.genai import types

    try:
        schema = types.Schema.from_json_schema(
            json_schema=types.JSONSchema.model_validate(_with_texts_alone(dict(output_schema))),
            raise_error_on_unsupported_field=True,
        )
        return _taken(schema.model_dump(mode="json", by_alias=True, exclude_none=True))
    except Exception as error:  # noqa: BLE001 - a `TypeError` for a `$ref` that leads nowhere, and others
        _log.warning(
            "`prompt.output_schema` cannot be converted for batch inference and is sent as it is; answers that do "
            "not match it are requested again online: %s",
            f"{type(error).__name__}: {error}".partition("\n")[0][:200],
        )
        return None


def _taken(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns an OpenAPI schema that the API takes.

    Raises:
        ValueError: It has an object without fields, or an array without items, which the API refuses.
    """
    kind = schema.get("type")
    if (kind == "OBJECT" and not schema.get("properties")) or (kind == "ARRAY" and not schema.get("items")):
        raise ValueError(f"an {kind.lower()} of any content")
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for each in (*inner, *filter(None, [schema.get("items")])):
        _taken(each)
    return schema


def _with_texts_alone(schema: Any) -> Any:
    """Returns a JSON Schema that has an `enum` of other values than texts, which the API refuses, in words."""
    if isinstance(schema, list):
        return [*map(_with_texts_alone, schema)]
    if not isinstance(schema, dict):
        return schema
    found = {name: _with_texts_alone(value) for name, value in schema.items()}
    values = found.get("enum")
    if isinstance(values, list) and not all(isinstance(value, str) for value in values):
        del found["enum"]
        words = f"One of {', '.join(map(str, values))}."
        found["description"] = f"{found['description']} {words}" if found.get("description") else words
    return found


def _thinking_config(generation: Generation) -> types.ThinkingConfig | None:
    from google.genai import types

    given = {
        "thinking_budget": generation.thinking_budget_tokens,
        "thinking_level": _enum(types.ThinkingLevel, "", generation.thinking_level),
        "include_thoughts": generation.keep_reasoning or None,
    }
    return None if all(value is None for value in given.values()) else types.ThinkingConfig(**given)


def _enum(kind: type[EnumT], prefix: str, name: str | None) -> EnumT | None:
    return None if name is None else kind(f"{prefix}{name.upper()}")


def constant_fields(generation: Generation) -> dict[str, Any]:
    """Returns the fields besides the configuration that are the same in all requests of a job."""
    fields: dict[str, Any] = {}
    if generation.safety_settings:
        fields["safetySettings"] = [
            {"category": category, "threshold": threshold}
            for category, threshold in generation.safety_settings.items()
        ]
    if generation.model_armor:
        fields["modelArmorConfig"] = {f"{side}TemplateName": name for side, name in generation.model_armor.items()}
    if generation.google_search:
        fields["tools"] = [{"googleSearch": {}}]
    return fields


def request_body(prompt: Prompt, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body of one request."""
    body: dict[str, Any] = {"contents": _contents(prompt), "generationConfig": config}
    if prompt.system:
        body["systemInstruction"] = {"role": "user", "parts": [{"text": prompt.system}]}
    return body


def _contents(prompt: Prompt) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    for turn in prompt.history:
        contents.append({"role": "user", "parts": [{"text": turn.text}]})
        contents.append({"role": "model", "parts": [{"text": turn.answer}]})
    parts = [*(_part(*media) for media in prompt.media), {"text": prompt.text}]
    return [*contents, {"role": "user", "parts": parts}]


def _part(uri: str, mime_type: str | None) -> dict[str, Any]:
    if place_of(uri) == "data":
        mime_type, content = inline_parts(uri)
        return {"inlineData": {"mimeType": mime_type, "data": content}}
    return {"fileData": {"fileUri": uri, "mimeType": mime_type}}


def _candidate(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(map(mapping_of, list_of(body.get("candidates"))), {})


def _texts(body: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the text of an answer, and the summary of the thoughts before it."""
    texts = {False: "", True: ""}
    for part in map(mapping_of, list_of(mapping_of(_candidate(body).get("content")).get("parts"))):
        texts[bool(part.get("thought"))] += str_of(part.get("text"))
    return texts[False], texts[True]


def _audio_tokens(reported: Any, details: str) -> Any:
    """Returns the tokens of audio, as reported; `None` if there are none."""
    for each in map(mapping_of, list_of(mapping_of(reported).get(details))):
        if each.get("modality") == "AUDIO":
            return each.get("tokenCount")
    return None


def read_reply(
    body: Mapping[str, Any],
    prompt: Prompt,
    model: str,
    usage: UsageReader,
    texts: tuple[str, str] | None = None,
) -> Reply:
    """Reads a response.

    Args:
        body: The response, or the last one of a stream.
        prompt: The prompt, for estimates.
        model: Name of the model, if the response has none.
        usage: Reads the usage.
        texts: The whole text of a stream, and that of the thoughts in it.
    """
    text, thoughts = _texts(body) if texts is None else texts
    reported = mapping_of(body.get("usageMetadata"))
    input_tokens, of_input = usage.count(reported.get("promptTokenCount"), estimated_prompt(prompt))
    written = text if "thoughtsTokenCount" in reported else text + thoughts
    output_tokens, of_output = usage.count(reported.get("candidatesTokenCount"), estimated_text(written))
    cached_tokens = usage.cached(reported.get("cachedContentTokenCount"), input_tokens)
    reasoning_tokens = usage.tokens(reported.get("thoughtsTokenCount")) or 0
    audio_tokens = usage.audio(
        _audio_tokens(reported, "promptTokensDetails"),
        _audio_tokens(reported, "cacheTokensDetails"),
        input_tokens - cached_tokens,
    )
    billed = Billed(
        tokens=Tokens(
            input_tokens,
            output_tokens + reasoning_tokens,
            cached=cached_tokens,
            audio=audio_tokens,
            estimated=of_input + of_output,
            reasoning=reasoning_tokens,
        ),
        service_tier=usage.tier(reported.get("serviceTier") or reported.get("trafficType")),
    )

    def refused(kind: FailureKind, message: str, category: str | None = None) -> RequestError:
        return RequestError(kind, message, http_status=200, category=category, **billed)

    candidate = _candidate(body)
    if not candidate:
        feedback = mapping_of(body.get("promptFeedback"))
        if not (block_reason := name_of(feedback.get("blockReason"), "")):
            raise refused("garbage", "a 200 with neither candidates nor a block reason")
        raise refused(
            "blocked",
            f"prompt blocked: {block_reason} {str_of(feedback.get('blockReasonMessage'))}",
            blocked_categories(feedback.get("safetyRatings"), block_reason),
        )
    reason = finish_reason_of(candidate.get("finishReason")).upper()
    if reason not in _FINISH_REASONS:
        message = f"answer withheld: {reason} {str_of(candidate.get('finishMessage'))}"
        if _WITHHELD.search(reason) is None:
            raise refused("garbage", message)
        raise refused("blocked", message, blocked_categories(candidate.get("safetyRatings"), reason))
    chosen = mapping_of(candidate.get("logprobsResult")).get("chosenCandidates")
    return Reply(
        text=valid_text(text),
        finish_reason=_FINISH_REASONS[reason],
        **billed,
        model=name_of(body.get("modelVersion"), model),
        mean_logprob=logprob_of(candidate.get("avgLogprobs")),
        token_logprobs=token_logprobs_of(chosen, "token", "logProbability"),
        citations=citations_of(candidate.get("groundingMetadata")),
        reasoning=valid_text(thoughts),
    )


def blocked_categories(ratings: Any, reason: str) -> str:
    """Returns the categories of harm whose ratings blocked a text, or the reason of the block without any."""
    blocked = (each for each in map(mapping_of, list_of(ratings)) if each.get("blocked") is True)
    names = {name_of(each.get("category"), "").replace(",", " ") for each in blocked} - {""}
    return ",".join(sorted(names)) or reason


def error_of(http_status: int, headers: Mapping[str, str], text: str) -> RequestError:
    """Parses an error response.

    Args:
        http_status: HTTP status.
        headers: Headers. Gemini sends no `Retry-After`, but `RetryInfo` in the body.
        text: The body.
    """
    body = read_error(text)
    kind = kind_of_status(http_status)
    if any(item.get("reason") == "API_KEY_INVALID" for item in body.details):
        kind = "unauthorized"
    if kind == "throttled" and (body.is_per_day or body.has_no_quota):
        kind = "quota_exhausted"
    return error_of_response(kind, http_status, headers, body)


#: Maximum number of pages and of texts, and of characters of each, that an answer keeps: the reply is untrusted.
_MAX_PAGES, _MAX_TEXTS, _MAX_CHARACTERS = 50, 200, 4_000


def citations_of(reported: Any) -> list[dict[str, Any]] | None:
    """Returns the pages that an answer uses, with the parts of it that each supports.

    Args:
        reported: `groundingMetadata` of a candidate.

    Returns:
        `None` if the server reports no search; an empty list for a search whose pages are not used.
    """
    if reported is None:
        return None
    metadata = mapping_of(reported)
    chunks = [mapping_of(mapping_of(chunk).get("web")) for chunk in list_of(metadata.get("groundingChunks"))]
    texts: dict[int, list[str]] = {}
    for support in map(mapping_of, list_of(metadata.get("groundingSupports"))[:_MAX_TEXTS]):
        text = _cited(mapping_of(support.get("segment")).get("text"))
        for index in list_of(support.get("groundingChunkIndices")):
            if type(index) is int and text:
                texts.setdefault(index, []).append(text)
    return [
        {
            "uri": _cited(chunk["uri"]),
            "title": _cited(chunk.get("title")),
            "texts": texts.get(index, []),
        }
        for index, chunk in enumerate(chunks[:_MAX_PAGES])
        if chunk.get("uri")
    ]


def _cited(value: Any) -> str:
    return valid_text(str_of(value)[:_MAX_CHARACTERS])
