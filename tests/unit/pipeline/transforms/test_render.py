from __future__ import annotations

import datetime
from typing import Any

import apache_beam as beam
import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.elements import FAILED
from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS
from airflow_provider_llmbeam.pipeline.transforms.render import PromptRenderer, Render
from airflow_provider_llmbeam.spec import Media, PromptTemplate
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter


def render(template: str, row: dict[str, Any] | None = None, **variables: Any) -> str:
    return (
        PromptRenderer(PromptTemplate(template=template, variables=variables, is_constant=True))
        .render(row or {})
        .text
    )


def test_a_row_and_the_variables_are_in_scope() -> None:
    assert render("{{ row.text }} on {{ variables.day }}", {"text": "Rain"}, day="Monday") == "Rain on Monday"


def test_system_and_media_are_templates_too() -> None:
    template = PromptTemplate(
        template="{{ row.x }}",
        system="Speak {{ row.language }}.",
        media=(Media(uri="gs://b/{{ row.id }}.png", mime_type="image/png"), Media(uri="gs://b/all.wav")),
    )
    assert PromptRenderer(template).render({"id": 7, "language": "Welsh", "x": "y"}) == Prompt(
        "y", "Speak Welsh.", (("gs://b/7.png", "image/png"), ("gs://b/all.wav", None))
    )


@given(st.text(max_size=30))
def test_the_values_of_a_row_are_never_templates_and_never_escaped(text: str) -> None:
    assert render("{{ row.text }}", {"text": text}) == text


@pytest.mark.parametrize("text", ["{{ 1 + 1 }}", "{% raise %}", '<b> & "quotes"', "a\n\n"])
def test_a_row_that_looks_like_a_template_is_sent_as_it_is(text: str) -> None:
    assert render("{{ row.text }}", {"text": text}) == text


def test_bytes_are_no_part_of_a_prompt_unless_the_template_decodes_them() -> None:
    row = {"picture": b"\xff\xd8"}
    assert render("{{ row.picture | length }} {{ row.picture.decode('latin-1') }}", row) == "2 ÿØ"
    with pytest.raises(TypeError, match="a value of 2 bytes that are no text; decode it in the template"):
        render("{{ row.picture }}", row)


def test_white_space_around_a_template_is_kept() -> None:
    assert render("\n a \n\n") == "\n a \n\n"


@pytest.mark.parametrize("template", ["{{ row.txet }}", "{{ row['txet'] }}", "{% if row.txet %}a{% endif %}"])
def test_the_error_of_a_missing_column_lists_the_existing_ones(template: str) -> None:
    with pytest.raises(jinja2.UndefinedError, match=r"^no column 'txet'; there are \['id', 'text'\]$"):
        render(template, {"text": "a", "id": 1})


def test_a_template_can_test_whether_a_column_exists() -> None:
    template = "{% if row.a is defined %}{{ row.a }}{% else %}none{% endif %} {{ row.b | default('some') }}"
    assert render(template, {"a": 1}) == "1 some"
    assert render(template, {"b": 2}) == "none 2"


@pytest.mark.parametrize("column", ["items", "keys", "values", "get", "copy", "pop", "update", "__class__", "row"])
def test_a_column_may_be_called_like_a_method(column: str) -> None:
    assert render(f"{{{{ row.{column} }}}} {{{{ row['{column}'] }}}}", {column: "mine"}) == "mine mine"


@pytest.mark.parametrize("column", ["items", "keys", "values", "get", "copy", "pop", "update"])
def test_a_missing_column_called_like_a_method_is_an_error(column: str) -> None:
    """Otherwise the prompt would contain `<built-in method …>`, which differs in each process."""
    with pytest.raises(jinja2.TemplateError):
        render(f"{{{{ row.{column} }}}}", {"id": 1})


def test_a_template_can_iterate_over_a_row() -> None:
    assert render("{% for name, value in row.items() %}{{ name }}={{ value }};{% endfor %}", {"a": 1, "b": 2}) == (
        "a=1;b=2;"
    )


def test_none_renders_as_an_empty_string() -> None:
    assert render("[{{ row.a }}][{{ none }}]", {"a": None}) == "[][]"


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (False, "False"), ("", ""), ([1], "[1]")])
def test_only_none_renders_as_an_empty_string(value: Any, text: str) -> None:
    assert render("{{ row.a }}", {"a": value}) == text


def test_json_is_not_escaped_for_html() -> None:
    row = {"a": {"text": "<b> & 'ä'", "none": None}}
    assert render("{{ row.a | tojson }}", row) == '{"text": "<b> & \'ä\'", "none": null}'


def test_tojson_of_a_row_accepts_any_type() -> None:
    assert render("{{ row | tojson }}", {"day": datetime.date(2026, 11, 20)}) == '{"day": "2026-11-20"}'


@pytest.mark.parametrize(
    "template",
    [
        "{{ row.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ row.items.__globals__ }}",
        "{{ variables.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(row) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ row.update({'a': 1}) }}",
        "{{ row.clear() }}",
        "{{ row['list'].append(1) }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template: str) -> None:
    row = {"a": 0, "list": []}
    with pytest.raises((jinja2.TemplateError, OverflowError)):
        render(template, row)
    assert row == {"a": 0, "list": []}


@pytest.mark.parametrize(
    "template", ["{{ row.text }}", "{{ row.no }}{{ '\\ud83d' }}", "{{ row.no }}{{ '%c' % 55357 }}"]
)
def test_half_a_surrogate_pair_does_not_leave_a_template(template: str) -> None:
    """Beam could not encode the prompt, and the whole job failed."""
    media = (Media(uri=template, mime_type="image/png"),)
    renderer = PromptRenderer(PromptTemplate(template=template, system=template, media=media))
    prompt = renderer.render({"text": "\ud83d", "no": ""})
    assert prompt == Prompt("\ufffd", "\ufffd", (("\ufffd", "image/png"),))


def test_a_row_that_asks_for_too_much_fails_and_the_next_one_is_rendered(job) -> None:
    step = Render(job(prompt={"template": "{{ 'ab' * row.n }}"}))
    step.setup()
    step.start_bundle()
    (output,) = step.process({"n": 10**10})
    ((_, rendered),) = step.process({"n": 2})
    step.finish_bundle()
    assert output.value.failure.kind == "template_error"
    assert output.value.failure.message == (
        "TemplateLimitError: a text of 20,000,000,000 characters; at most 67,108,864"
    )
    assert rendered[1] == "abab"


def test_the_step_names_a_row_by_its_fingerprint(job) -> None:
    spec = job()
    step = Render(spec)
    step.setup()
    ((fingerprint, rendered),) = step.process({"id": 1, "text": "hi"})
    assert rendered == ({"id": 1, "text": "hi"}, "Say hi", None, (), 0)
    assert fingerprint == Fingerprinter(spec.model, spec.generation, None)("Say hi", None)


def test_a_row_that_cannot_be_rendered_becomes_a_failed_row(job) -> None:
    step = Render(job(prompt={"template": "{{ 1 / row.count }}"}))
    step.setup()
    step.start_bundle()
    (output,) = step.process({"count": 0})
    step.finish_bundle()
    assert isinstance(output, beam.pvalue.TaggedOutput)
    assert output.tag == FAILED
    assert output.value.row == {"count": 0}
    assert output.value.failure.kind == "template_error"
    assert output.value.failure.message == "ZeroDivisionError: division by zero"
    assert PROGRESS.snapshot().failed == 1
