from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import Media, PromptTemplate


@pytest.mark.parametrize("field", ["template", "system"])
@pytest.mark.parametrize("text", ["{{ row.text", "{% if row.text %}", "{% nothing %}"])
def test_an_invalid_template_is_refused_with_its_line(field: str, text: str) -> None:
    (problem,) = PromptTemplate.problems({"template": "x", field: f"first\n{text}"})
    assert problem.field == field
    assert "is not a Jinja2 template (line 2: " in problem.want


def test_a_filter_that_does_not_exist_is_refused() -> None:
    """Otherwise the error appears on the workers, where each try of the job fails."""
    (problem,) = PromptTemplate.problems({"template": "{{ row.text | sumarise }}"})
    assert problem.field == "template"
    assert "sumarise" in problem.want


@pytest.mark.parametrize(
    "text", ['Answer in JSON: {"a": 1}', "{{ row.text | tojson }}", "{% raw %}{{{% endraw %}"]
)
def test_braces_and_filters_are_accepted(text: str) -> None:
    assert PromptTemplate(template=text).template == text


def test_an_empty_template_is_refused() -> None:
    (problem,) = PromptTemplate.problems({"template": ""})
    assert problem.field == "template"


def test_the_system_instruction_is_optional() -> None:
    assert PromptTemplate(template="x", system=None).system is None


def test_the_uri_of_media_is_a_template_too() -> None:
    (problem,) = Media.problems({"uri": "gs://bucket/{{ row.image"})
    assert problem.field == "uri"
    assert "is not a Jinja2 template" in problem.want


def test_the_problem_of_a_media_item_names_its_index() -> None:
    (problem,) = PromptTemplate.problems({"template": "x", "media": [{"uri": "a.png"}, {"uri": "{{"}]})
    assert problem.field == "media.1.uri"


@pytest.mark.parametrize("schema", [{"type": "strng"}, {"properties": []}, {"pattern": "("}])
def test_an_invalid_json_schema_is_refused_with_its_path(schema: dict[str, object]) -> None:
    (problem,) = PromptTemplate.problems({"template": "x", "output_schema": schema})
    assert problem.field == "output_schema"
    assert problem.got == schema
    assert "is not a JSON Schema" in problem.want
    assert f"at $.{next(iter(schema))}" in problem.want


@pytest.mark.parametrize("schema", [None, {}, {"type": "object", "required": ["a"]}])
def test_a_json_schema_is_kept_unchanged(schema: dict[str, object] | None) -> None:
    assert PromptTemplate(template="x", output_schema=schema).output_schema == schema


@pytest.mark.parametrize("reference", ["#/$defs/missing", "https://example.invalid/schema.json"])
def test_a_schema_reference_without_a_target_is_refused(reference):
    schema = {"type": "object", "properties": {"a": {"$ref": reference}}}
    with pytest.raises(JobSpecError, match="has a `\\$ref` without a target"):
        PromptTemplate.parse({"template": "t", "output_schema": schema})


def test_a_reference_within_the_schema_is_followed():
    schema = {"$defs": {"a": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/a"}}}
    assert PromptTemplate.parse({"template": "t", "output_schema": schema}).output_schema == schema
