from __future__ import annotations

import hashlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from llmbeam_sandbox.models.answers import answer_text, count_tokens, pieces, prompt_sha256

SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}


def test_equal_prompts_get_equal_answers_and_different_ones_do_not() -> None:
    texts = [answer_text(prompt, model="m").text for prompt in ("a tower", "a tower", "a bridge")]
    assert texts[0] == texts[1] != texts[2]


def test_the_answer_depends_on_the_model_and_on_the_system_text() -> None:
    texts = {
        answer_text("p", model="m").text,
        answer_text("p", model="n").text,
        answer_text("p", model="m", system="s").text,
    }
    assert len(texts) == 3


def test_prompts_that_differ_only_far_behind_the_start_get_different_answers() -> None:
    long = "word " * 5000
    assert answer_text(long + "a", model="m").text != answer_text(long + "b", model="m").text


def test_a_schema_gives_json() -> None:
    answer = answer_text("what a tower", model="m", schema=SCHEMA)
    assert set(json.loads(answer.text)["label"].split()) <= {"what", "a", "tower"}


def test_a_prompt_without_words_still_gets_json() -> None:
    assert json.loads(answer_text("?!", model="m", schema=SCHEMA).text)


@settings(max_examples=50)
@given(st.text(), st.integers(1, 20))
def test_an_answer_is_never_longer_than_the_limit(prompt: str, limit: int) -> None:
    answer = answer_text(prompt, model="m", max_output_tokens=limit)
    assert count_tokens(answer.text) <= limit
    assert answer.output_tokens <= limit
    assert answer.is_cut == (answer.text != answer_text(prompt, model="m").text)


def test_a_token_is_four_bytes() -> None:
    assert [count_tokens(text) for text in ("", "a", "abcd", "abcde", "ñandú")] == [0, 1, 1, 2, 2]


def test_the_hash_of_a_prompt_without_system_text_is_that_of_its_bytes() -> None:
    assert prompt_sha256("ñ") == hashlib.sha256("ñ".encode()).hexdigest()
    assert prompt_sha256("ñ", "system") != prompt_sha256("ñ")


@given(st.text())
def test_pieces_join_to_the_whole(text: str) -> None:
    assert "".join(pieces(text)) == text
    assert 1 <= len(pieces(text)) <= 4
