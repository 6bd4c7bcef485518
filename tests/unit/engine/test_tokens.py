from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.tokens import estimate_tokens

any_text = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 1),
        ("abc", 1),
        ("abcd", 1),
        ("abcdefgh", 2),
        ("漢" * 4, 3),
        ("😀", 1),
        ("\ud800" * 4, 3),
        ("a" * 4000, 1000),
    ],
)
def test_four_bytes_are_a_token(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@given(any_text, any_text)
def test_a_longer_text_is_never_fewer_tokens(text: str, more: str) -> None:
    assert 1 <= estimate_tokens(text) <= estimate_tokens(text + more)
