from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.backends.streaming import MAX_CHARACTERS, StreamedText
from airflow_provider_llmbeam.engine.retry import RequestError


def test_pieces_of_a_streamed_answer_are_joined() -> None:
    text = StreamedText()
    text.add("")
    assert not text
    text.add("a")
    text.add("b")
    assert text
    assert text.whole() == "ab"


def test_a_streamed_answer_without_end_is_given_up() -> None:
    text = StreamedText()
    text.add("x" * MAX_CHARACTERS)
    with pytest.raises(RequestError, match="of more than 8,388,608 characters") as caught:
        text.add("x")
    assert (caught.value.kind, caught.value.http_status) == ("garbage", 200)
