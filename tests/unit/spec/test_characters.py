from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec.characters import valid_text


@pytest.mark.fuzz
@given(st.text(st.characters() | st.characters(categories=["Cs"])))
def test_any_text_becomes_valid_and_a_valid_one_stays_as_it_is(text):
    valid = valid_text(text)
    valid.encode()
    assert valid_text(valid) == valid
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert valid is text


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("cut \ud83d", "cut \ufffd"),
        ("\ude00 cut", "\ufffd cut"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\ud83d\ude00é", "\ufffd😀é"),
        ("\ud83dé", "\ufffdé"),
    ],
)
def test_a_lone_half_of_an_emoji_is_replaced_and_two_halves_are_joined(text, valid):
    assert valid_text(text) == valid
