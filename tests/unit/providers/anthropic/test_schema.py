from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.providers.anthropic.schema import claude_schema

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (
            {"type": "integer", "minimum": 1, "maximum": 5, "description": "Stars."},
            {"type": "integer", "description": "Stars. (minimum: 1, maximum: 5)"},
        ),
        (
            {"type": "string", "format": "date", "maxLength": 9},
            {**TEXT, "format": "date", "description": "(maxLength: 9)"},
        ),
        ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}),
        (
            {"type": ["object", "null"], "properties": {"a": TEXT}, "required": ["a"], "description": "D."},
            {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"a": TEXT},
                        "required": ["a"],
                        "additionalProperties": False,
                    },
                    {"type": "null"},
                ],
                "description": "D.",
            },
        ),
        (
            {"type": ["array", "null"], "items": TEXT},
            {"anyOf": [{"type": "array", "items": TEXT}, {"type": "null"}]},
        ),
        ({"oneOf": [TEXT, {"type": "null"}]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"type": "string", "enum": ["a", "b"]}, {"enum": ["a", "b"]}),
        (
            {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3},
            {"type": "array", "items": TEXT, "minItems": 1, "description": "(maxItems: 3)"},
        ),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"a": TEXT}}}},
            {
                "$ref": "#/$defs/A",
                "$defs": {"A": {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False}},
            },
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
                    {"properties": {"b": TEXT}, "required": ["b"]},
                ]
            },
            {
                "type": "object",
                "properties": {"a": TEXT, "b": TEXT},
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_a_schema_has_what_the_api_lacks_in_words(given: dict[str, Any], sent: dict[str, Any]) -> None:
    assert claude_schema(given) == sent


def test_the_published_client_would_send_the_same_keywords() -> None:
    anthropic = pytest.importorskip("anthropic")
    schema = {
        "type": "object",
        "properties": {"stars": {"type": "integer", "minimum": 1}, "tags": {"type": "array", "items": TEXT}},
        "required": ["stars"],
    }
    ours, theirs = claude_schema(schema), anthropic.transform_schema(schema)
    ours["properties"]["stars"].pop("description")
    theirs["properties"]["stars"].pop("description")
    assert ours == theirs
