"""What is mended in an answer without another request."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.mending import mended_json, without_reasoning
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from tests.hostile import examples

SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
labels = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="`"), max_size=20)


def reply(text: str) -> Reply:
    return Reply(text=text, finish_reason="stop", tokens=Tokens(1, 2), model="m")


def parsed(text: str, schema: Any = SCHEMA, **options: Any) -> tuple[Any, Reply]:
    parser = OutputParser(schema, **options)
    mended = parser.mended(reply(text))
    return parser.parse(mended), mended


AROUND = [
    "```json\n{}\n```",
    "```\n{}\n```",
    "Here it is:\n```json\n{}\n```\nI hope this helps!",
    "\ufeff{}",
    "{}\n\nI hope this helps!",
    "<think>\nHm: is it 5?\n</think>\n\n```json\n{}\n```",
]


@given(labels, st.sampled_from(AROUND))
@examples(1)
def test_json_with_something_around_it_is_mended(label: str, around: str) -> None:
    value = {"label": label}
    found, mended = parsed(around.replace("{}", json.dumps(value)))
    assert found == value
    assert json.loads(mended.text) == value
    assert mended.mended == 1


@given(labels)
@examples(1)
def test_json_that_is_valid_is_as_it_was(label: str) -> None:
    text = json.dumps({"label": label}, indent=1)
    assert parsed(text) == ({"label": label}, reply(text))


def test_control_characters_and_double_encoding_are_mended() -> None:
    assert parsed('{"label": "line1\nline2\t"}')[0] == {"label": "line1\nline2\t"}
    assert parsed(json.dumps(json.dumps({"label": "a"})))[0] == {"label": "a"}
    assert parsed('"{}"', {"type": "string"})[1].mended == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"label": "a"}\n{"label": "b"}',
        '{"label": "a"',
        '{"label": NaN} so',
        'So: {"label": "a", "\\u006cabel": "b"}',
        "5 apples",
        "",
        "[" * 100_000,
        '```json\n{"label": "a"}\n```\n```json\n{"label": "b"}\n```',
    ],
    ids=lambda text: text[:20],
)
def test_what_is_not_sure_is_not_mended(text: str) -> None:
    assert mended_json(text) is None
    with pytest.raises(RequestError):
        parsed(text)


def test_the_schema_is_still_checked() -> None:
    with pytest.raises(RequestError, match="does not match `output_schema`"):
        parsed('```json\n{"label": 5}\n```')


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\nOkay.\n</think>\n\nfine", "fine"),
        ("<think>a</think>fine", "fine"),
        ("<think></think>fine", "fine"),
        ("<reasoning>why</reasoning><answer>x</answer>", "<reasoning>why</reasoning><answer>x</answer>"),
        ("Okay, the user wants\n</think>\n\nfine", "fine"),
        ("<think>never ends", ""),
        ("fine <think>a</think>", "fine <think>a</think>"),
        ("a < b", "a < b"),
        ("the tag </think> ends it", "the tag </think> ends it"),
        ("<b>fine</b>", "<b>fine</b>"),
    ],
)
def test_reasoning_before_an_answer_is_no_part_of_it(text: str, answer: str) -> None:
    assert without_reasoning(text)[0] == answer
    assert OutputParser(None).mended(reply(text)).text == answer


SILENT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="<>"), min_size=1).filter(
    str.strip
)


@given(st.none() | SILENT, st.none() | SILENT, SILENT, st.booleans())
@examples(1)
def test_all_reasoning_is_kept_where_it_is_wanted_and_none_of_it_elsewhere(
    apart: str | None, block: str | None, answer: str, keeps: bool
) -> None:
    text = answer if block is None else f"<think>{block}</think>{answer}"
    sent = replace(reply(text), reasoning=apart or "")
    mended = OutputParser(None, keeps_reasoning=keeps).mended(sent)
    assert mended.text.strip() == answer.strip()
    kept = [each for each in (apart, block and block.strip()) if each]
    assert mended.reasoning == ("\n".join(kept) if keeps else "")


def test_reasoning_is_counted_and_may_be_kept() -> None:
    _, mended = parsed("<think>hm</think>fine", None)
    assert (mended.text, mended.reasoning, mended.mended) == ("fine", "", 0)
    assert parsed("<think>hm</think>fine", None, keeps_reasoning=True)[1].reasoning == "hm"
    assert parsed("<think>hm</think>fine", None, strips_reasoning=False)[1].text == "<think>hm</think>fine"
    with pytest.raises(RequestError, match="2 characters of reasoning alone"):
        parsed("<think>hm</think>", None)
