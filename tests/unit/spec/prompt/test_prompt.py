from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import Media, PromptTemplate


@pytest.mark.parametrize("field", ["template", "system"])
@pytest.mark.parametrize("text", ["{{ row.text", "{% if row.text %}", "{% nothing %}"])
def test_an_invalid_template_is_refused_with_its_line(field: str, text: str) -> None:
    (problem,) = PromptTemplate.problems({"template": "{{ row.x }}", field: f"first\n{text}"})
    assert problem.field == field
    assert "is not a Jinja2 template (line 2: " in problem.want


def test_a_filter_that_does_not_exist_is_refused() -> None:
    """Otherwise the error appears on the workers, where each try of the job fails."""
    (problem,) = PromptTemplate.problems({"template": "{{ row.text | sumarise }}"})
    assert problem.field == "template"
    assert "sumarise" in problem.want


@pytest.mark.parametrize(
    "text",
    [
        '{{ row.a }} in JSON: {"a": 1}',
        "{{ row.text | tojson }}",
        "{% raw %}{{{% endraw %}{{ row }}",
        "{a} {{ row.a }}",
    ],
)
def test_braces_and_filters_are_accepted(text: str) -> None:
    assert PromptTemplate(template=text).template == text


def test_an_empty_template_is_refused() -> None:
    (problem,) = PromptTemplate.problems({"template": ""})
    assert problem.field == "template"


def test_the_system_instruction_is_optional() -> None:
    assert PromptTemplate(template="{{ row.x }}", system=None).system is None


def test_the_uri_of_media_is_a_template_too() -> None:
    (problem,) = Media.problems({"uri": "gs://bucket/{{ row.image"})
    assert problem.field == "uri"
    assert "is not a Jinja2 template" in problem.want


def test_the_root_of_media_is_one_directory_or_a_list_of_them() -> None:
    for given, found in ((None, ()), ("/data", ("/data",)), (["/data", "gs://b"], ("/data", "gs://b"))):
        media = Media.model_validate({"uri": "{{ row.uri }}", "root": given})
        assert media.root == found
        assert Media.model_validate(media.model_dump(mode="json")) == media


def test_the_problem_of_a_media_item_names_its_index() -> None:
    (problem,) = PromptTemplate.problems({"template": "{{ row.x }}", "media": [{"uri": "a.png"}, {"uri": "{{"}]})
    assert problem.field == "media.1.uri"


@pytest.mark.parametrize("schema", [{"type": "strng"}, {"properties": []}, {"pattern": "("}])
def test_an_invalid_json_schema_is_refused_with_its_path(schema: dict[str, object]) -> None:
    (problem,) = PromptTemplate.problems({"template": "{{ row.x }}", "output_schema": schema})
    assert problem.field == "output_schema"
    assert problem.got == schema
    assert "is not a JSON Schema" in problem.want
    assert f"at $.{next(iter(schema))}" in problem.want


@pytest.mark.parametrize("schema", [None, {}, {"type": "object", "required": ["a"]}])
def test_a_json_schema_is_kept_unchanged(schema: dict[str, object] | None) -> None:
    assert PromptTemplate(template="{{ row.x }}", output_schema=schema).output_schema == schema


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
@pytest.mark.parametrize("reference", ["#/$defs/missing", "https://example.invalid/schema.json"])
def test_a_schema_reference_without_a_target_is_refused(keyword, reference):
    schema = {"type": "object", "properties": {"a": {keyword: reference}}}
    with pytest.raises(JobSpecError, match="without a target in the schema") as caught:
        PromptTemplate.parse({"template": "{{ row.t }}", "output_schema": schema})
    assert f"has a `{keyword}` without a target in the schema: {reference!r}" in str(caught.value)


def test_variables_that_are_nested_too_deep_are_refused():
    """Pydantic serializes 255 levels, and the task failed when it wrote the spec for its job."""
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(JobSpecError, match="`variables`: is nested more than 100 levels deep"):
        PromptTemplate.parse({"template": "{{ row.t }}", "variables": {"a": deep}})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"x", "y"}, "has a set in 'tags', which has another order in each process: pass a list"),
        ([{"tags": frozenset()}], "has a set in 'tags'"),
        (float("nan"), "has nan in 'tags', which JSON does not have: pass None, or a text"),
        ([1.5, -1e999], "has -inf in 'tags'"),
    ],
)
def test_a_variable_that_another_process_would_read_in_another_way_is_refused(value, reason):
    with pytest.raises(JobSpecError, match=f"`variables`: {reason}"):
        PromptTemplate.parse({"template": "{{ row.t }}", "variables": {"a": 1, "tags": value}})


def test_half_a_surrogate_pair_in_a_variable_is_replaced_and_the_spec_can_be_written():
    prompt = PromptTemplate(template="{{ row.t }}", variables={"a": ["cut \ud83d"]})
    assert PromptTemplate.model_validate_json(prompt.model_dump_json()).variables == {"a": ["cut \ufffd"]}


def test_a_reference_within_the_schema_is_followed():
    schema = {"$defs": {"a": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/a"}}}
    assert PromptTemplate.parse({"template": "{{ row.t }}", "output_schema": schema}).output_schema == schema
