"""Moderation as a value: what is refused, and the columns that it adds."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec, Moderation

GUARD = {"type": "openai", "name": "guard", "base_url": "http://127.0.0.1:9/v1"}


def moderation(**changes: object) -> Moderation:
    return Moderation.parse({"model": GUARD, **changes})


def job(changes: dict, **moderation: object) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "j",
            "source": {"uri": "rows.jsonl", "key": "id"},
            "prompt": {"template": "{{ row.text }}"},
            "model": "gemini-2.5-flash",
            "sink": {"uri": "out"},
            "safety": {"moderation": {"model": GUARD, **moderation}},
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on": []}, r"`on`: "),
        ({"on": ["prompt"]}, r"`on\.0`: .*got 'prompt'"),
        ({"template": "Is it safe?"}, r"`template`: must show the guard what it judges: it lacks '\{text\}'"),
        ({"verdict": "json"}, r"`system`: this field, or a longer `template`, is needed"),
        ({"action": "replace"}, r"`replacement`: this field is needed with the action 'replace'"),
        ({"categories": {"S1": "replace"}}, r"`replacement`: "),
        ({"categories": {"S1,S2": "flag"}}, r"`categories\.S1,S2"),
        ({"limits": {"budget_usd": 1}}, r"`limits\.price`: this field is needed with `budget_usd`"),
    ],
)
def test_a_moderation_that_cannot_work_is_refused_with_the_field(changes, message):
    with pytest.raises(JobSpecError, match=message):
        moderation(**changes)


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({}, ()),
        ({"action": "flag"}, ("moderation_input", "moderation_output")),
        ({"action": "replace", "replacement": "-", "on": ["output"]}, ("moderation_output",)),
        ({"categories": {"S1": "flag", "S2": "allow"}, "on": ["input"]}, ("moderation_input",)),
        ({"on_unreadable": "flag", "on": ["output", "input"]}, ("moderation_input", "moderation_output")),
        ({"categories": {"S1": "allow"}}, ()),
    ],
)
def test_an_output_row_has_a_column_for_each_side_that_may_be_flagged(changes, columns):
    assert moderation(**changes).extra_columns == columns
    assert job({"sink": {"uri": "out", "details": False}}, **changes).detail_columns == tuple(
        f"llmbeam_{name}" for name in columns
    )


@pytest.mark.parametrize(
    ("changes", "guard", "message"),
    [
        ({"task": "embed", "model": "gemini-embedding-001"}, {}, r"moderation\.on`: must be \['input'\] to embed"),
        (
            {"prompt": {"template": "{{ row.text }}", "output_schema": {"type": "object"}}},
            {"action": "replace", "replacement": "-"},
            r"moderation\.action`: must be 'fail' or 'flag', .* values of `prompt\.output_schema`",
        ),
        (
            {"sink": {"type": "milvus", "uri": "m.db", "collection": "c"}, "state_uri": "state"}
            | {"task": "embed", "model": "gemini-embedding-001", "embedding": {"dimensions": 768}},
            {"action": "flag", "on": ["input"]},
            r"moderation\.action`: must be 'fail', .* with a sink of type 'milvus'",
        ),
        (
            {"source": {"uri": "rows.jsonl", "key": "llmbeam_moderation_input"}},
            {"action": "flag"},
            r"`source\.key`: has column 'llmbeam_moderation_input', and every output row has a column of that",
        ),
    ],
)
def test_a_job_whose_moderation_cannot_work_is_refused(changes, guard, message):
    with pytest.raises(JobSpecError, match=message):
        job(changes, **guard)


def test_answers_of_batch_inference_and_prompts_to_embed_can_be_moderated():
    assert job({"inference": {"mode": "batch"}}, on=["output"]).models[1].name == "guard"
    assert job({"task": "embed", "model": "gemini-embedding-001"}, on=["input"]).safety.moderation


def test_a_job_reads_the_key_of_its_guard():
    guard = GUARD | {"api_key_env": "GUARD_KEY"}
    spec = job({"safety": {"moderation": {"model": guard}}})
    assert "GUARD_KEY" in spec.secret_variables
