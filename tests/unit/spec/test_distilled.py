from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.distilled import HeadType, find_heads

LABELS = {"type": "object", "properties": {"label": {"type": "string", "enum": ["a", "b"]}}}


def make(stage, schema=LABELS):
    return JobSpec.parse(
        {
            "name": "night",
            "source": {"uri": "rows.jsonl", "key": ["id"]},
            "prompt": {"template": "Which? {{ row.text }}", "output_schema": schema},
            "model": {"type": "openai", "name": "large", "base_url": "http://127.0.0.1:1/v1"},
            "sink": {"uri": "out"},
            "state_uri": "state",
            "cascade": {"stages": [{"type": "distilled", **stage}]},
        }
    )


def test_an_embedding_stage_is_a_job_that_embeds_its_own_text():
    spec = make({"embedding": {"model": "gemini-embedding-001", "dimensions": 256}, "prompt": "{{ row.text }}"})
    job = spec.cascade.stage_job(spec, 0)
    assert job.task == "embed"
    assert job.embedding.dimensions == 256
    assert job.prompt.template == "{{ row.text }}"
    assert job.prompt.output_schema is None
    assert spec.cascade.names(spec.model) == ("distilled gemini-embedding-001", "large")


def test_enums_booleans_scales_and_lists_of_them_are_learned():
    schema = {
        "$defs": {"Mood": {"enum": ["good", "bad"]}},
        "properties": {
            "mood": {"$ref": "#/$defs/Mood"},
            "known": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "stars": {"type": "integer", "minimum": 1, "maximum": 5},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/Mood"}},
            "note": {"type": "string"},
            "count": {"type": "integer"},
        },
    }
    kinds = {head.field: head.kind for head in find_heads(schema)}
    assert kinds == {"mood": "one", "known": "one", "stars": "one", "tags": "many", "note": None, "count": None}
    assert find_heads(None, ["a"]) == (HeadType(None, "one"),)
    assert find_heads(None) == (HeadType(None, None),)
    assert find_heads({"enum": ["a"]}) == (HeadType(None, "one"),)


@pytest.mark.parametrize(
    ("stage", "schema", "fault"),
    [
        ({"embedding": "tfidf"}, {"properties": {"note": {"type": "string"}}}, "'note' is none of them"),
        ({"embedding": "tfidf"}, None, "the answer is none of them"),
        ({"embedding": {"model": "gemini-2.5-flash"}}, LABELS, "`cascade.stages.0.embedding.model.name`"),
        (
            {"embedding": {"type": "column", "column": "v"}, "prompt": "{{ row.text }}"},
            LABELS,
            "`cascade.stages.0.prompt`: must be left out with vectors of a column",
        ),
        ({}, LABELS, "`cascade.stages.0.embedding`: this field is needed"),
    ],
)
def test_what_a_classifier_cannot_do_is_refused(stage, schema, fault):
    with pytest.raises(JobSpecError) as refused:
        make(stage, schema)
    assert fault in str(refused.value)
