"""Conversion of an answer's JSON Schema to the schema of Gemini's batch inference."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from google.genai import types

_log = logging.getLogger("llmbeam")


def gemini_schema(output_schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a JSON Schema as an OpenAPI schema; `None` if that cannot express it.

    With `responseJsonSchema` batch inference gave degenerate answers (0 of 502 valid, ruby_llm#894), while
    `responseSchema` works. Every answer is validated against the JSON Schema afterwards, whatever was sent.
    """
    try:
        schema = types.Schema.from_json_schema(
            json_schema=types.JSONSchema.model_validate(dict(output_schema)), raise_error_on_unsupported_field=True
        )
        return schema.model_dump(mode="json", by_alias=True, exclude_none=True)
    except Exception as error:  # noqa: BLE001 - a `TypeError` for a `$ref` that leads nowhere, and others
        _log.warning(
            "`prompt.output_schema` cannot be converted for batch inference and is sent as it is; answers that do "
            "not match it are requested again online: %s",
            f"{type(error).__name__}: {error}".partition("\n")[0][:200],
        )
        return None
