"""The known deviations from the published definitions, with who is right."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal


@dataclass(frozen=True)
class Deviation:
    """One deviation.

    Attributes:
        method: Pattern of the names of its methods.
        fault: Pattern of the whole fault, place and message.
        right: Who is right: what we send or emulate, the definition, or nobody knows.
        why: The reason, with its source.
    """

    method: str
    fault: str
    right: Literal["ours", "definition", "unknown"]
    why: str


_EXTRA = r"Additional properties are not allowed \(.*"
_SNAKE = "property_ordering|max_items|min_items|generation_config|output_dimensionality"
_GEMINI = r"gemini\..*"
_VERTEX_GENERATE = r"v1(?:beta1)?:aiplatform\..*\.(?:streamGenerateContent|generateContent)"
DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        _GEMINI,
        rf"[\w.\[\]]*usageMetadata: {_EXTRA}'serviceTier' was",
        "ours",
        "`usageMetadata.serviceTier`: ai.google.dev/gemini-api/docs/flex-inference; google-genai has none.",
    ),
    Deviation(
        "gemini.countTokens",
        rf"reply.body: {_EXTRA}'promptTokensDetails' was",
        "ours",
        "`promptTokensDetails` of CountTokensResponse: ai.google.dev/api/tokens; google-genai 2.34 leaves it out.",
    ),
    Deviation(
        "anthropic.messages",
        r"error.error: \{'type': 'rate_limit_error', .*'details': \{'error_code': '\w+'\}\} is not valid .*",
        "ours",
        "`error.details.error_code` of a limit, which anthropic 2.14 reads (`_error_classes`); its types lack it.",
    ),
    Deviation(
        r"gemini\.files\..*",
        r"[\w.\[\]]*sizeBytes: '\d+' is not of type 'integer'",
        "ours",
        "An int64 is text in ProtoJSON; google-genai's types hold it as a number.",
    ),
    Deviation(
        _GEMINI,
        rf"request\.[\w.\[\]]*: {_EXTRA}'(?:{_SNAKE})'",
        "ours",
        "ProtoJSON parsers accept original names of fields; google-genai itself sends `property_ordering`.",
    ),
    Deviation(
        "gemini.generateContent",
        r"request\.contents: \{.*\} is not of type 'array'",
        "ours",
        "Google's own samples for curl send `contents` as one object.",
    ),
    Deviation(
        _VERTEX_GENERATE,
        r"request\.generationConfig\.response(?:MimeType|Schema|JsonSchema): is deprecated",
        "definition",
        "v1beta1 names `responseFormat` instead since 2026; google-genai 2.34, which sends it, has no other.",
    ),
    Deviation(
        _VERTEX_GENERATE,
        r"query\.alt: 'sse' is not one of",
        "ours",
        "Streams are documented with `alt=sse`, which google-genai sends; Discovery lists json, media, proto.",
    ),
    Deviation(
        "v1:aiplatform.projects.locations.endpoints.predict",
        r"reply\.predictions: \{.*\} is not of type 'array'",
        "unknown",
        "With `@requestFormat: chatCompletions` Model Garden's notebooks read `predictions` as one completion.",
    ),
    Deviation(
        r"v2:bigquery\.jobs\.(?:get|cancel)",
        r"query\.projection: there is no such parameter",
        "ours",
        "google-cloud-bigquery sends `projection=full` with each of these requests.",
    ),
    Deviation(
        r"v2:bigquery\.jobs\.insert",
        r"\w+\.configuration\.load\.skipLeadingRows: '\d+' is not of type 'integer'",
        "unknown",
        "google-cloud-bigquery sends it as text, and the emulator returns it as it came.",
    ),
    Deviation(
        "openai.chatCompletions",
        rf"request.body: {_EXTRA}'(?:guided_choice|structured_outputs)'",
        "ours",
        "vLLM's own fields, docs.vllm.ai, Structured Outputs: the old name and that of vLLM 0.12.",
    ),
    Deviation(
        "openai.chatCompletions",
        r"error\.type: '\w+Error' is not one of",
        "ours",
        "vLLM names the class of its error, e.g. NotFoundError: vllm/entrypoints/openai, ErrorResponse.",
    ),
    Deviation(
        r"gemini\.(?:batches\.get|embedContent)",
        rf"reply\.[\w.\[\]]*: (?:\d+ is not of type 'string'|{_EXTRA}'tokenCount' was)",
        "unknown",
        "google-genai's types hold `tokenCount` of an embedding as a number; no sample of the wire is published.",
    ),
    Deviation(
        r"v1:iamcredentials\..*",
        r"request\.delegates: None is not of type 'array'",
        "ours",
        "google-auth sends null where there is no chain of delegates.",
    ),
    Deviation(
        "anthropic.messages",
        r"chunk.body: \{'type': 'ping'\} is not valid",
        "ours",
        "The API sends pings between its events (platform.claude.com/docs/en/build-with-claude/streaming), which "
        "its client leaves out before it reads their types.",
    ),
    Deviation(
        "openai.embeddings",
        r"reply\.data\[\]\.embedding: '.*' is not of type 'array'",
        "ours",
        "`encoding_format=base64`, which OpenAI's client decodes; its types have the decoded vector only.",
    ),
    Deviation(
        "openai.embeddings",
        r"error\.type: 'max_tokens_per_request' is not one of HTTP 400",
        "ours",
        "The error of OpenAI for more than 300,000 tokens in one request, as its users report it.",
    ),
)


@cache
def known_deviation(method: str, fault: str) -> Deviation | None:
    """Returns the entry of a fault in the table; None if it is new."""
    for known in DEVIATIONS:
        if re.fullmatch(known.method, method) and re.match(known.fault, fault, re.DOTALL):
            return known
    return None
