from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_llmbeam.spec import PromptTemplate
from airflow_provider_llmbeam.spec.prompt.names import row_columns, takes_whole_row

ROW = "{{ row.text }}"


def problems(template: str, **more: Any) -> list[str]:
    return [str(problem) for problem in PromptTemplate.problems({"template": template, **more})]


@pytest.mark.parametrize(
    "template",
    [
        ROW,
        "{{ row['text'] }}",
        "{{ row | tojson }}",
        "{% for name, value in row.items() %}{{ loop.index }} {{ name }}: {{ value }}{% endfor %}",
        "{% set text = row.text %}{{ text }}",
        "{% macro shown(name) %}{{ name }}: {{ row[name] }}{{ caller() }}{% endmacro %}{% call shown('a') %}.{% "
        "endcall %}",
        "{% if row.a is defined %}{{ row.a }}{% endif %}",
        "{% for n in range(3) %}{{ row.text }}{% endfor %}{% set s = namespace(a=1) %}{{ s.a }}",
        '{"text": {{ row.text | tojson }}}',
        "{{ '{row.text}' }} " + ROW,
        "{{ row.a ~ '' }}",
    ],
)
def test_a_template_that_uses_the_row_in_any_way_is_accepted(template: str) -> None:
    assert problems(template) == []


@pytest.mark.parametrize(
    ("template", "more"),
    [
        ("Describe.", {"media": [{"uri": "{{ row.image }}"}]}),
        ("Go on.", {"system": ROW}),
        ("Tell a joke.", {"is_constant": True}),
        ("{{ variables.joke }}", {"is_constant": True, "variables": {"joke": "a"}}),
    ],
)
def test_a_constant_text_is_accepted_if_the_row_is_elsewhere_or_it_is_meant(
    template: str, more: dict[str, Any]
) -> None:
    assert problems(template, **more) == []


@pytest.mark.parametrize(
    "template",
    [
        "{{ variables.tone | default('dry') }}",
        "{% if variables.tone is defined %}{{ variables.tone }}{% endif %}",
        "{% if 'tone' in variables %}{{ variables.tone }}{% endif %}",
        "{% for name, value in variables.items() %}{{ name }}{% endfor %}",
        "{{ variables | tojson }}{{ variables.tone }}",
        "{{ variables[row.text] }}",
    ],
)
def test_a_variable_that_may_be_missing_is_accepted(template: str) -> None:
    assert problems(template + ROW) == []


def test_a_row_that_is_a_name_of_the_template_itself_is_no_column() -> None:
    (found,) = problems("{% set row = {'a': 1} %}{{ row.a }}")
    assert found.startswith("`template`: uses no column of `row`")


@pytest.mark.parametrize("template", ["{{ row.a", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"])
def test_a_template_that_cannot_be_compiled_has_one_problem(template: str) -> None:
    (found,) = problems(template)
    assert "is not a Jinja2 template" in found


@pytest.mark.parametrize(
    ("template", "columns"),
    [
        ("{{ row.a }} {{ row['b c'] }} {{ row.a }}", ("a", "b c")),
        ("{% for name in row.keys() %}{{ row[name] }}{% endfor %}", ()),
        ("{{ row.a.b }} {{ variables.c }}", ("a",)),
        ("{{ row | tojson }}", ()),
    ],
)
def test_the_columns_that_a_template_names_are_known(template, columns):
    assert row_columns(template) == columns


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("a text", False),
        ("{{ row.a }} {{ row['b'] }}{% if row.c is defined %}{{ row.c }}{% endif %}", False),
        ("{{ row | tojson }}", True),
        ("{{ row.a }}{{ row }}", True),
        ("{{ row[variables.name] }}", True),
        ("{% for name, cell in row.items() %}{{ name }}{% endfor %}", True),
        ("{{ row.get('a') }}", True),
        ("{% set all = row %}{{ all.a }}", True),
    ],
)
def test_a_template_that_may_use_any_column_takes_the_whole_row(text: str, is_whole: bool) -> None:
    assert takes_whole_row(text) is is_whole
