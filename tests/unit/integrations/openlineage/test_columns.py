from __future__ import annotations

import pytest

from airflow_provider_llmbeam.integrations.openlineage.columns import (
    Column,
    prompt_columns,
    sink_columns,
    source_columns,
)
from airflow_provider_llmbeam.spec import JobSpec

SCHEMA = {
    "type": "object",
    "properties": {
        "mood": {"type": "string"},
        "scores": {"type": "array", "items": {"type": "number"}},
        "parts": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        "any": {},
    },
}
ANSWER = (
    Column("mood", "string"),
    Column("scores", "array<double>"),
    Column("parts", "array", (Column("n", "integer"),)),
    Column("any"),
)
AFTER = ("origin", "model", "fingerprint", "finish_reason", "input_tokens", "output_tokens", "attempts")


def job(**changes):
    given = {
        "name": "j",
        "source": {"uri": "/in.csv", "key": ["id"]},
        "prompt": "{{ row.text }} {{ row['more'] }} {% if row.keys() %}{% endif %} {{ row.text }}",
        "model": {"type": "echo"},
        "sink": "/out",
        "state_uri": "/state",
    }
    return JobSpec.parse(given | changes)


def test_the_source_has_the_columns_of_key_passthrough_and_prompt():
    spec = job(sink={"uri": "/out", "passthrough": ["day"]})
    assert [column.name for column in source_columns(spec)] == ["id", "day", "text", "more"]
    assert {column.type for column in source_columns(spec)} == {None}


def test_columns_of_system_and_media_count_as_well():
    prompt = {"template": "{{ row.a }}", "system": "{{ row.b }}", "media": [{"uri": "gs://b/{{ row.c }}.png"}]}
    model = {"type": "gemini", "project": "p"}
    assert prompt_columns(job(prompt=prompt, model=model)) == ("a", "b", "c")


def test_an_answer_without_a_schema_is_text():
    columns = sink_columns(job())
    assert columns[:2] == (Column("id"), Column("answer", "string"))
    assert [column.name for column in columns[2:]] == [*AFTER, "latency_seconds"]
    assert {column.name: column.type for column in columns}["input_tokens"] == "integer"


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("struct", (Column("answer", "struct", ANSWER),)),
        ("flat", ANSWER),
        ("json", (Column("answer", "json"),)),
    ],
)
def test_an_answer_with_a_schema_has_the_columns_of_its_form(form, answer):
    spec = job(
        prompt={"template": "{{ row.text }}", "output_schema": SCHEMA},
        sink={"uri": "/out", "answer_columns": form},
    )
    assert sink_columns(spec)[1 : 1 + len(answer)] == answer


def test_the_answer_of_postgres_is_json():
    spec = job(
        prompt={"template": "{{ row.text }}", "output_schema": SCHEMA}, sink={"type": "postgres", "table": "t"}
    )
    assert sink_columns(spec)[1] == Column("answer", "json")


def test_vectors_are_arrays_and_milvus_has_columns_of_its_own():
    embeds = {"task": "embed", "model": {"type": "gemini", "project": "p", "name": "gemini-embedding-001"}}
    assert sink_columns(job(**embeds))[1] == Column("answer", "array<double>")
    milvus = {"type": "milvus", "uri": "http://m", "collection": "c"}
    assert [(column.name, column.type) for column in sink_columns(job(**embeds, sink=milvus))] == [
        ("llmbeam_id", "string"),
        ("id", None),
        ("vector", "array<double>"),
        ("model", "string"),
        ("fingerprint", "string"),
    ]
