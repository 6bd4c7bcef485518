from __future__ import annotations

import datetime
import pickle
from dataclasses import replace
from typing import Any

import jinja2
import pytest
from apache_beam.pvalue import TaggedOutput
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.measure.answers import render_rows
from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import sample_source
from airflow_provider_llmbeam.pipeline.measure.forget.find import find_prompts
from airflow_provider_llmbeam.pipeline.measure.named_keys import NamedKeys
from airflow_provider_llmbeam.pipeline.measure.rows import read_golden
from airflow_provider_llmbeam.pipeline.media.feature import IdentifyMedia
from airflow_provider_llmbeam.pipeline.privacy import detection, patterns
from airflow_provider_llmbeam.pipeline.prompt_of_row import PromptRenderer
from airflow_provider_llmbeam.pipeline.sources.files import parse_json_line
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import Render, TakeRows
from airflow_provider_llmbeam.spec import JobSpec, Media, PromptTemplate
from tests.hostile import altered, encoded, examples
from tests.unit.pipeline.conftest import job_of


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


DIGITS = {"type": "custom", "name": "NUMBER", "pattern": r"\d{6}"}
LINE = {"id": 7, "text": "Größe 123456", "other": [1, {"a": None}], "at": "2026-01-01"}
JOBS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"safety": {"privacy": {"detectors": [DIGITS]}}},
    "masked in a column": {"safety": {"privacy": {"detectors": [DIGITS], "columns": ["text"]}}},
    "never with a number": {"safety": {"privacy": {"detectors": [DIGITS], "actions": {"NUMBER": "fail"}}}},
    "with files": {
        "prompt": {"template": "{{ row.text }}", "media": [{"uri": "https://example.com/{{ row.id }}.png"}]}
    },
    "of a half": {"source": {"share": [0, 0.5]}},
}


class EveryKey(NamedKeys):
    """Names all rows."""

    def of_row(self, row: Any) -> str:
        return "named"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the tests")
    # A busy machine must not decide which of two equal texts a pattern could read in time.
    monkeypatch.setattr(detection, "TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(patterns, "TIMEOUT_SECONDS", 60.0)


def found_by_the_graph(spec: JobSpec, line: bytes) -> list[Any]:
    """Takes the rows of a line through the steps of the graph, each in a worker of its own."""
    found: list[Any] = list(parse_json_line(line))
    for step in (TakeRows(spec), Render(spec), *([IdentifyMedia(spec)] if spec.prompt.media else [])):
        step.setup()
        step.start_bundle()
        rows, found = found, []
        for row in rows:
            is_failed = isinstance(row, TaggedOutput)
            batch = [row] if isinstance(step, IdentifyMedia) else row
            found += [row] if is_failed else pickle.loads(pickle.dumps([*step.process(batch)]))
        list(step.finish_bundle() or ())
    return [
        each.value.failure if isinstance(each, TaggedOutput) else (each[0], Prompt(*each[1][1:])) for each in found
    ]


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", JOBS)
@examples(0.2)
@given(value=altered(LINE))
def test_the_estimate_the_evaluation_and_forget_find_the_prompt_of_the_graph_or_its_failure(
    kind: str, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_bytes(encoded(value))
    given_parts = {"prompt": "{{ row.text }} {{ row.other | length }} {{ row.id | tojson }}", **JOBS[kind]}
    source = {"uri": str(path), "key": ["id"], **given_parts.pop("source", {})}
    spec = job_of(source=source, sink={"uri": f"{path.parent}/out/"}, **given_parts)
    in_graph = found_by_the_graph(spec, path.read_bytes())
    if not in_graph:  # it is in the other half
        return
    (expected,) = in_graph

    sample = sample_source(spec)
    assert sample.rows == 1
    try:
        of_evaluation = next(iter(render_rows(spec, read_golden(spec, spec.source)).values()))
    except JobSpecError as error:
        of_evaluation = error
    forgotten = find_prompts(spec, [spec], EveryKey((), ("id",)), ())
    if isinstance(expected, Failure):
        (failed,) = sample.failures.values()
        assert (failed.rows, failed.message, sample.tokens) == (1, expected.message, {})
        assert of_evaluation == expected or f"row 1: {expected.message}" in str(of_evaluation)
        assert forgotten.fingerprints == set()
    else:
        fingerprint, _ = expected
        prompts = [(key, replace(each, audio_tokens=0)) for key, each in sample.candidates.items()]
        assert prompts == [expected]
        assert (of_evaluation.fingerprint, replace(of_evaluation.prompt, audio_tokens=0)) == expected
        assert forgotten.fingerprints == {fingerprint}
