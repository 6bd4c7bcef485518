"""Fields of a request to Gemini, besides its contents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmbeam_sandbox.billing.tokens import Labels
from llmbeam_sandbox.core.checks import check_labels
from llmbeam_sandbox.core.responses import google_error
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.models.answers import ANY_JSON, Answer, words_of
from llmbeam_sandbox.models.calls import ModelCall, RefusedError
from llmbeam_sandbox.models.schema import Schema

MAX_LABELS = 64
"""Source: cloud.google.com/vertex-ai/generative-ai/docs/multimodal/add-labels-to-api-calls."""

MAX_STOP_SEQUENCES = 5
"""Source: ai.google.dev/api/generate-content, `GenerationConfig`."""

MEAN_LOGPROB = -0.125
"""Mean logarithm of the probabilities of the tokens of every answer."""
PAGES = ("https://example.com/first", "https://example.org/second")
"""Pages that every search finds; the answer uses the first."""
_LEVELS = frozenset({"MINIMAL", "LOW", "MEDIUM", "HIGH"})
_RESOLUTIONS = frozenset(f"MEDIA_RESOLUTION_{name}" for name in ("LOW", "MEDIUM", "HIGH"))
_CATEGORIES = frozenset(
    f"HARM_CATEGORY_{name}"
    for name in (
        "HARASSMENT",
        "HATE_SPEECH",
        "SEXUALLY_EXPLICIT",
        "DANGEROUS_CONTENT",
        "CIVIC_INTEGRITY",
        "JAILBREAK",
    )
)
_THRESHOLDS = frozenset({"BLOCK_LOW_AND_ABOVE", "BLOCK_MEDIUM_AND_ABOVE", "BLOCK_ONLY_HIGH", "BLOCK_NONE", "OFF"})


def field(fields: Mapping[str, Any], name: str) -> Any:
    """Returns a field by its JSON name or, as protobuf's JSON mapping allows, by its proto name."""
    return fields.get(name, fields.get(re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", name)))


def schema_of(config: Mapping[str, Any], mime_type: str) -> Schema | None:
    """Returns the schema of the answer; None requests text."""
    schema: Schema | None = field(config, "responseJsonSchema") or field(config, "responseSchema")
    return schema or (ANY_JSON if mime_type == "application/json" else None)


def max_output_tokens(config: Mapping[str, Any]) -> int | None:
    """Returns the maximum length of the answer; raises `RefusedError`."""
    limit = field(config, "maxOutputTokens")
    if limit is not None and int(limit) < 1:
        raise RefusedError(google_error(400, "max_output_tokens must be positive."))
    return None if limit is None else int(limit)


def check_parameters(fields: Mapping[str, Any], config: Mapping[str, Any], model: str, *, is_vertex: bool) -> None:
    """Refuses parameters that are invalid, exclude each other, or that the model does not take; `RefusedError`."""
    _check_thinking(field(config, "thinkingConfig") or {}, model)
    seed, stops = field(config, "seed"), field(config, "stopSequences") or ()
    if seed is not None and not -(2**31) <= int(seed) < 2**31:
        raise RefusedError(google_error(400, f"Invalid value at 'generation_config.seed' (TYPE_INT32), {seed}"))
    if len(stops) > MAX_STOP_SEQUENCES:
        message = (
            f"The number of stop sequences must be at most {MAX_STOP_SEQUENCES}, but {len(stops)} were specified."
        )
        raise RefusedError(google_error(400, message))
    resolution = field(config, "mediaResolution")
    if resolution is not None and resolution not in _RESOLUTIONS:
        raise _invalid("generation_config.media_resolution", resolution)
    for setting in field(fields, "safetySettings") or ():
        for name, values in (("category", _CATEGORIES), ("threshold", _THRESHOLDS)):
            if setting.get(name) not in values:
                raise _invalid(f"safety_settings[0].{name}", setting.get(name))
    armor = field(fields, "modelArmorConfig")
    if armor is not None and not is_vertex:
        message = 'Invalid JSON payload received. Unknown name "modelArmorConfig": Cannot find field.'
        raise RefusedError(google_error(400, message))
    if armor and field(fields, "safetySettings"):
        raise RefusedError(google_error(400, "model_armor_config and safety_settings cannot be set together."))
    if searches(fields) and schema_of(config, field(config, "responseMimeType") or "") and _is_before_3(model):
        message = "Controlled generation is not supported with google_search tool."
        raise RefusedError(google_error(400, message))


def searches(fields: Mapping[str, Any]) -> bool:
    """Returns whether a request may search the web."""
    return any(field(tool, "googleSearch") is not None for tool in field(fields, "tools") or ())


def _check_thinking(thinking: Mapping[str, Any], model: str) -> None:
    level, budget = field(thinking, "thinkingLevel"), field(thinking, "thinkingBudget")
    if level is None:
        return
    if budget is not None:
        message = "You can only set one of thinking budget and thinking level."
        raise RefusedError(google_error(400, message))
    if level not in _LEVELS:
        raise _invalid("generation_config.thinking_config.thinking_level", level)
    if _is_before_3(model):
        raise RefusedError(google_error(400, "Thinking level is not supported for this model."))


def _is_before_3(model: str) -> bool:
    return model.startswith(("gemini-1", "gemini-2"))


def _invalid(name: str, value: Any) -> RefusedError:
    return RefusedError(google_error(400, f"Invalid value at '{name}', \"{value}\""))


def labels_of(fields: Mapping[str, Any], *, is_vertex: bool) -> Labels:
    """Returns the labels of a request, which only Vertex AI takes; raises `RefusedError`."""
    if "labels" not in fields:
        return ()
    if not is_vertex:
        message = 'Invalid JSON payload received. Unknown name "labels": Cannot find field.'
        raise RefusedError(google_error(400, message))
    labels = fields["labels"]
    if len(labels) > MAX_LABELS:
        raise RefusedError(google_error(400, f"A request may have {MAX_LABELS} labels; it has {len(labels)}."))
    try:
        check_labels(labels)
    except RestError as error:
        raise RefusedError(google_error(error.http_status, error.message)) from None
    return tuple(sorted(labels.items()))


def reported(call: ModelCall, answer: Answer) -> dict[str, Any]:
    """Returns what a candidate says of its answer: the probabilities of its tokens, the pages of its search."""
    reported: dict[str, Any] = {}
    if call.has_logprobs:
        logprob = MEAN_LOGPROB if answer.mean_logprob is None else answer.mean_logprob
        chosen = [{"token": word, "logProbability": logprob} for word in words_of(answer.text)]
        reported |= {"avgLogprobs": logprob, "logprobsResult": {"chosenCandidates": chosen}}
    if call.searches:
        begin = answer.text.partition(" ")[0]
        reported["groundingMetadata"] = {
            "webSearchQueries": [call.prompt[:40]],
            "groundingChunks": [{"web": {"uri": page, "title": page.split("/")[2]}} for page in PAGES],
            "groundingSupports": [
                {"segment": {"endIndex": len(begin), "text": begin}, "groundingChunkIndices": [0]},
            ],
        }
    return reported
