"""Fields of a request to Gemini, besides its contents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.sandbox.billing.tokens import Labels
from airflow_provider_llmbeam.sandbox.core.checks import check_labels
from airflow_provider_llmbeam.sandbox.core.responses import google_error
from airflow_provider_llmbeam.sandbox.core.rest import RestError
from airflow_provider_llmbeam.sandbox.models.answers import ANY_JSON
from airflow_provider_llmbeam.sandbox.models.calls import RefusedError
from airflow_provider_llmbeam.sandbox.models.schema import Schema

MAX_LABELS = 64
"""Source: cloud.google.com/vertex-ai/generative-ai/docs/multimodal/add-labels-to-api-calls."""


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
