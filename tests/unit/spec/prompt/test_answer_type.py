from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from airflow_provider_llmbeam.pipeline.sinks.parquet import arrow_type, fits, typed
from airflow_provider_llmbeam.spec.prompt.answer_type import MAX_TYPES, AnswerType, answer_type

TEXT, ANY = AnswerType("text"), AnswerType("any", is_nullable=True)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, TEXT),
        ({"type": ["string", "null"]}, AnswerType("text", is_nullable=True)),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, AnswerType("text", is_nullable=True)),
        ({"allOf": [{"type": "string"}]}, TEXT),
        ({"enum": ["a", "b"]}, TEXT),
        ({"enum": ["a", None]}, AnswerType("text", is_nullable=True)),
        ({"const": 1}, AnswerType("integer")),
        ({"enum": [1, 0.5]}, AnswerType("number")),
        ({"type": ["string", "integer"]}, ANY),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, ANY),
        ({}, ANY),
        ({"type": "object"}, ANY),
        ({"type": "array"}, ANY),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}}, ANY),
        ({"type": "array", "items": {"type": "string"}}, AnswerType("array", item=TEXT)),
        ({"properties": {"a": {"type": "string"}}}, AnswerType("object", fields=(("a", TEXT),))),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}}, TEXT),
        ({"$ref": "#/$defs/c", "$defs": {}}, ANY),
        ({"$ref": "#anchor"}, ANY),
    ],
)
def test_the_type_of_a_schema(schema: dict[str, Any], expected: AnswerType) -> None:
    assert answer_type(schema) == expected


@pytest.mark.parametrize(
    "beside",
    [{"$ref": "#/$defs/a"}, *({keyword: [{"$ref": "#/$defs/a"}]} for keyword in ("allOf", "anyOf", "oneOf"))],
)
def test_no_field_of_a_schema_beside_another_one_is_left_out(beside: dict[str, Any]) -> None:
    defs = {"$defs": {"a": {"properties": {"a": {"type": "string"}}}}}
    assert answer_type(defs | beside).kind == "object"
    assert answer_type(defs | beside | {"properties": {"b": {"type": "string"}}}) == ANY
    assert answer_type(defs | {"anyOf": [{"properties": {"b": {}}}], "allOf": [{}]} | beside) == ANY


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#"}}}
    (_, (name, inner)) = answer_type(tree).fields
    assert (name, inner.fields) == ("next", (("value", AnswerType("integer")), ("next", ANY)))


def test_references_that_multiply_end() -> None:
    schema: dict[str, Any] = {"$defs": {"0": {"type": "string"}}, "$ref": "#/$defs/30"}
    for level in range(1, 31):
        part = {"$ref": f"#/$defs/{level - 1}"}
        schema["$defs"][str(level)] = {"type": "object", "properties": {"a": part, "b": part}}

    def count(found: AnswerType) -> int:
        return 1 + sum(count(inner) for _, inner in found.fields)

    assert count(answer_type(schema)) <= 2 * MAX_TYPES


def test_a_model_of_pydantic_has_the_types_that_its_author_expects() -> None:
    class Tag(BaseModel):
        name: str

    class Answer(BaseModel):
        mood: str
        score: int | None = None
        tags: list[Tag] = []
        anything: dict[str, int] = {}

    tag = pa.struct([("name", pa.string())])
    assert arrow_type(answer_type(Answer.model_json_schema())) == pa.struct(
        [("mood", pa.string()), ("score", pa.int64()), ("tags", pa.list_(tag)), ("anything", pa.string())]
    )


def test_bigquery_has_neither_lists_of_lists_nor_lists_with_nulls() -> None:
    lists = {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}
    nulls = {"type": "array", "items": {"type": ["string", "null"]}}
    for schema in (lists, nulls):
        assert arrow_type(answer_type(schema), for_bigquery=True) == pa.string()


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1.0, pa.int64(), 1),
        (1, pa.float64(), 1.0),
        ({"x": 1}, pa.string(), '{"x": 1}'),
        (None, pa.list_(pa.string()), None),
        ({"b": 2}, pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": None, "b": 2}),
    ],
)
def test_a_json_value_in_its_type(value: Any, kind: pa.DataType, expected: Any) -> None:
    assert typed(value, kind) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2**63, pa.int64()),
        (True, pa.int64()),
        (1, pa.bool_()),
        (float("inf"), pa.int64()),
        (10**400, pa.float64()),
    ],
)
def test_a_value_that_no_column_holds_does_not_fit(value: Any, kind: pa.DataType) -> None:
    assert not fits(value, kind)
