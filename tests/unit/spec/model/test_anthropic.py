"""Jobs for Claude that are refused when the Dag is parsed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.model import parse_model
from airflow_provider_llmbeam.spec.model.server import server_of
from airflow_provider_llmbeam.spec.prompt.answer_type import free_map

CLAUDE = {"type": "anthropic", "name": "claude-haiku-5-5"}
TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("generation", "field", "want"),
    [
        ({"temperature": 0.0}, "temperature", "must be left out: Anthropic does not take it"),
        ({"seed": 1}, "seed", "must be left out: Anthropic does not take it"),
        ({"thinking_budget_tokens": 1023, "max_output_tokens": 4096}, "thinking_budget_tokens", "at least 1024"),
        ({"thinking_budget_tokens": 2048}, "thinking_budget_tokens", "less than `generation.max_output_tokens`"),
        (
            {"reasoning_effort": "minimal"},
            "reasoning_effort",
            "must be one of 'low', 'medium', 'high', 'xhigh', 'max'",
        ),
    ],
)
def test_a_parameter_that_the_api_refuses_is_refused_at_parse(
    job: Any, generation: dict[str, Any], field: str, want: str
) -> None:
    (problem,) = JobSpec.problems(job(model=CLAUDE, generation=generation))
    assert problem.field == f"generation.{field}"
    assert want in problem.want


@pytest.mark.parametrize("budget", [0, -1, 1024])
def test_a_budget_of_thoughts_that_the_api_takes_is_taken(job: Any, budget: int) -> None:
    generation = {"thinking_budget_tokens": budget, "max_output_tokens": 2048}
    assert JobSpec.problems(job(model=CLAUDE, generation=generation)) == ()


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "additionalProperties": TEXT}, "$"),
        ({"type": "object"}, "$"),
        ({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "object"}}}}, "$.a"),
        ({"anyOf": [TEXT, {"type": "object", "properties": {}, "additionalProperties": True}]}, "$"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}}, "$.A"),
        ({"type": "object", "properties": {"a": TEXT}}, None),
        ({"type": "object", "properties": {"type": TEXT}, "additionalProperties": False}, None),
    ],
)
def test_an_object_of_any_fields_is_found(schema: dict[str, Any], place: str | None) -> None:
    assert free_map(schema) == place


def test_a_schema_with_an_object_of_any_fields_is_refused_at_parse(job: Any) -> None:
    prompt = {"template": "{{ row.a }}", "output_schema": {"type": "object", "additionalProperties": TEXT}}
    (problem,) = JobSpec.problems(job(model=CLAUDE, prompt=prompt))
    assert problem.field == "prompt.output_schema"
    assert "must name all `properties` of each object: Anthropic answers with no others" in problem.want


@pytest.mark.parametrize("inference", [{"mode": "batch"}, {"mode": "auto", "finish_by": "PT6H"}])
def test_claude_has_batch_inference_which_on_vertex_ai_reads_cloud_storage(job: Any, inference: Any) -> None:
    assert JobSpec.problems(job(model=CLAUDE, inference=inference)) == ()
    (problem,) = JobSpec.problems(job(model={**CLAUDE, "project": "p"}, inference=inference))
    assert problem.field == "state_uri"


def test_vectors_are_refused_at_parse(job: Any) -> None:
    assert "model.type" in {problem.field for problem in JobSpec.problems(job(model=CLAUDE, task="embed"))}


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({}, "https://api.anthropic.com/v1/messages"),
        ({"base_url": "http://127.0.0.1:9"}, "http://127.0.0.1:9/v1/messages"),
        ({"base_url": "http://127.0.0.1:9/v1"}, "http://127.0.0.1:9/v1/messages"),
        (
            {"project": "p"},
            "https://aiplatform.googleapis.com/v1/projects/p/locations/global/publishers/anthropic/models/"
            "claude-haiku-5-5:rawPredict",
        ),
        (
            {"project": "p", "location": "eu"},
            "https://aiplatform.eu.rep.googleapis.com/v1/projects/p/locations/eu/publishers/anthropic/models/"
            "claude-haiku-5-5:rawPredict",
        ),
    ],
)
def test_the_address_is_that_of_the_published_client(fields: dict[str, Any], url: str) -> None:
    model = parse_model({**CLAUDE, **fields})
    assert model.messages_url() == url  # type: ignore[union-attr]
    assert server_of(model, {}).kind == ("loopback" if "127" in url else "provider")
