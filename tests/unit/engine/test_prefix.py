"""The constant head of prompts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_provider_llmbeam.engine.prefix import PromptHead, head_of, min_tokens, storage_usd
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.spec.prompt import PromptTemplate


def head(template, **fields):
    return head_of(PromptTemplate(template=template, **fields))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Judge: {{ row.text }} now", "Judge: "),
        ("{{ variables.day }}: {{ row.text }}", "Monday: "),
        ("{% for e in variables.examples %}- {{ e }}\n{% endfor %}{{ row.text }}", "- good\n- bad\n"),
        ("{% set day = variables.day %}{{ day }} {{ row.text }}", "Monday "),
        ("A {% if row.text %}B{% endif %}", "A "),
        ("A {{- row.text }}", "A"),
        ("A {% set x = row.text %}B {{ x }}", "A "),
        ("A {{ variables.examples | random }} {{ row.text }}", "A "),
    ],
)
def test_the_head_ends_before_the_first_part_that_may_differ(template, text):
    found = head(template, variables={"day": "Monday", "examples": ["good", "bad"]})
    assert found == PromptHead(text)


def test_a_constant_system_instruction_belongs_to_the_head():
    assert head("{{ row.text }}", system="Be {{ variables.how }}.", variables={"how": "short"}) == PromptHead(
        "", "Be short."
    )


def test_a_system_instruction_of_the_row_leaves_no_head():
    assert head("Constant. {{ row.text }}", system="Answer in {{ row.language }}.") is None


def test_a_template_that_begins_with_a_column_has_no_head():
    assert head("{{ row.text }} is to be judged.") is None


def test_media_come_before_the_text_so_that_only_the_system_instruction_is_constant():
    media = [{"uri": "gs://b/{{ row.picture }}"}]
    assert head("What is it?", system="Be short.", media=media) == PromptHead("", "Be short.")


def test_an_error_in_the_head_is_left_to_the_rows():
    assert head("{{ 1 // 0 }} {{ row.text }}") is None


def test_the_head_and_the_rest_are_the_whole_prompt():
    found = PromptHead("Judge: ", "Be short.")
    prompt = Prompt("Judge: a", "Be short.")
    assert found.text + found.rest_of(prompt) == prompt.text


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt("Judge: a"),
        Prompt("Other: a", "Be short."),
        Prompt("Judge: ", "Be short."),
        Prompt("Judge: a", "Be short.", (("gs://b/x.png", None),)),
    ],
)
def test_a_prompt_that_differs_has_no_rest_and_is_sent_whole(prompt):
    assert PromptHead("Judge: ", "Be short.").rest_of(prompt) is None


AT, FLASH = datetime(2026, 11, 24, tzinfo=UTC), "gemini-2.5-flash"


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("gemini-2.5-pro", 2_048), ("models/gemini-2.5-flash", 2_048), ("gemini-3.8-flash", 4_096)],
)
def test_the_minimum_depends_on_the_generation_of_the_model(model, tokens):
    assert min_tokens(model) == tokens


@pytest.mark.parametrize(
    ("model", "at", "usd"),
    [
        (FLASH, AT, 1.0),
        ("gemini-2.5-pro", AT, 4.5),
        ("gemini-3.8-flash", AT, 0.5),
        ("gemini-3.8-flash", datetime(2027, 1, 1, tzinfo=UTC), 1.0),
        ("projects/p/locations/l/endpoints/1", AT, None),
        ("gemini-next", AT, None),
    ],
)
def test_storage_is_billed_by_tokens_and_time(model, at, usd):
    assert storage_usd(model, 1_000_000, 3600, at) == usd
