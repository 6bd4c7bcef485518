from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmbeam_sandbox.models.schema import SchemaError, document

WORDS = ("red", "green", "blue")
NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
    },
    "required": ["value", "next"],
}
EXPRESSION = {
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "left": {"$ref": "#/$defs/Expression"},
                "right": {"$ref": "#/$defs/Expression"},
            },
            "required": ["left", "right"],
        },
        {"type": "number"},
    ]
}
ENDLESS = {
    "$ref": "#/$defs/Self",
    "$defs": {"Self": {"required": ["a"], "properties": {"a": {"$ref": "#/$defs/Self"}}}},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "anything": {},
    "flat": {
        "type": "object",
        "properties": {
            "label": {"enum": ["a", "b"]},
            "score": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["label", "score"],
        "additionalProperties": False,
    },
    "union type": {"type": ["string", "null"], "minLength": 3},
    "only null": {"type": ["null"]},
    "const": {"const": {"a": [1]}},
    "array bounds": {"type": "array", "items": {"type": "boolean"}, "minItems": 4, "maxItems": 5},
    "empty array": {"type": "array", "items": {"type": "string"}, "maxItems": 0},
    "distinct": {"type": "array", "items": {"enum": [1, 2, 3, 4]}, "minItems": 4, "uniqueItems": True},
    "tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    "exclusive": {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7},
    "negative": {"type": "integer", "exclusiveMaximum": -5},
    "step": {"type": "integer", "multipleOf": 7, "minimum": 1},
    "fraction": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-3},
    "short": {"type": "string", "maxLength": 2},
    "long": {"type": "string", "minLength": 700},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "email": {"type": "string", "format": "email"},
    "first branch": {"anyOf": [{"type": "integer"}, {"type": "string"}], "description": "either"},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]},
        ]
    },
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
    "undeclared": {"type": "object", "required": ["x"]},
    "reference": {"$ref": "#/$defs/Color", "$defs": {"Color": {"enum": ["red", "green"]}}},
    "escaped reference": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}},
    "list that contains itself": {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
    "tree that contains itself": {"$ref": "#/$defs/Expression", "$defs": {"Expression": EXPRESSION}},
    "no type": {
        "properties": {"a": {"minimum": 3}, "b": {"items": {"type": "null"}}},
        "required": ["a", "b"],
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_document_satisfies_the_schema(name: str) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for seed in map(str, range(30)):
        value = document(SCHEMAS[name], seed=seed, words=WORDS)
        jsonschema.validate(value, SCHEMAS[name], format_checker=checker)


def ranges(kind: str, low: str, high: str, limit: int) -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.tuples(st.integers(0, limit), st.integers(0, limit)).map(sorted)
    return bounds.map(lambda pair: {"type": kind, low: pair[0], high: pair[1]})


leaves = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")]),
    ranges("integer", "minimum", "maximum", 1000),
    ranges("number", "minimum", "maximum", 1000),
    ranges("string", "minLength", "maxLength", 60),
    st.lists(st.integers() | st.text(max_size=5), min_size=1, max_size=4).map(lambda values: {"enum": values}),
    st.lists(st.sampled_from(["string", "integer", "null"]), min_size=1, unique=True).map(
        lambda kinds: {"type": kinds}
    ),
)


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.text("abcdef", min_size=1, max_size=3)
    objects = st.dictionaries(names, inner, max_size=4).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties)) if properties else st.nothing()).map(
            lambda required: {"type": "object", "properties": properties, "required": sorted(required)}
        )
    )
    arrays = st.tuples(inner, ranges("array", "minItems", "maxItems", 4)).map(
        lambda pair: {**pair[1], "items": pair[0]}
    )
    branches = st.lists(inner, min_size=1, max_size=3).map(lambda schemas: {"anyOf": schemas})
    return objects | arrays | branches


@settings(max_examples=50, deadline=None)
@given(st.recursive(leaves, nested, max_leaves=12), st.text(max_size=5))
def test_any_schema_of_the_known_keywords_is_satisfied(schema: dict[str, Any], seed: str) -> None:
    value = document(schema, seed=seed, words=WORDS)
    jsonschema.validate(value, schema)
    assert value == document(schema, seed=seed, words=WORDS)


def test_the_openapi_dialect_of_gemini_is_understood() -> None:
    schema = {
        "type": "OBJECT",
        "properties": {
            "city": {"type": "STRING", "nullable": True, "minLength": "2"},
            "population": {"type": "INTEGER"},
        },
        "required": ["city"],
        "propertyOrdering": ["population", "city"],
    }
    value = document(schema, seed="s", words=WORDS)
    assert list(value) == ["population", "city"]
    assert isinstance(value["city"], str)
    assert isinstance(value["population"], int)


def test_strings_are_made_of_the_words_given() -> None:
    assert set(document({"type": "string"}, seed="s", words=WORDS).split()) <= set(WORDS)


def test_other_seeds_give_other_documents() -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 5}
    assert len({str(document(schema, seed=str(seed), words=WORDS)) for seed in range(20)}) == 20


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "integer", "minimum": 2, "maximum": 1}, "leaves no value"),
        ({"enum": []}, "`enum` must be a list"),
        ({"$ref": "#/$defs/Missing"}, "names nothing"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, "circular"),
        ({"type": "array", "items": {"const": 1}, "minItems": 2, "uniqueItems": True}, "distinct items"),
        (ENDLESS, "depth"),
        ({"type": "array", "items": 7, "minItems": 1}, "must be an object; got 7"),
    ],
)
def test_a_schema_that_nothing_satisfies_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        document(schema, seed="s", words=WORDS)
