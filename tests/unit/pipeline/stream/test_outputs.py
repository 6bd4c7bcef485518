"""The records that messages become."""

from __future__ import annotations

import json
import time

import pytest

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, failed_row
from airflow_provider_llmbeam.pipeline.stream.outputs import Outputs
from airflow_provider_llmbeam.pipeline.stream.partition import Message
from airflow_provider_llmbeam.pipeline.stream.topics import Topics
from tests.outcomes import completion

TOPICS = Topics(source=("q",), answers="answers", dead_letter="dead", journal="j", history=None, group="g")


def record_of(row, key=b"of the message", column=None, max_bytes=1000):
    outputs = Outputs(OutputColumns(("id",), ("user",)), column, TOPICS, max_bytes, has_stores=False)
    return outputs.result(Message(0, key, None, time.time(), row), row)


def answered(user: str | int | None, text: str = "yes") -> AnsweredRow:
    return AnsweredRow({"id": 1, "user": user}, "f", completion(text), "fresh")


@pytest.mark.parametrize(
    ("user", "column", "key"),
    [
        ("u", None, b"of the message"),
        ("u", "user", b"u"),
        (7, "user", b"7"),
        (None, "user", None),
    ],
)
def test_an_answer_has_the_key_of_its_message_or_of_a_column(user, column, key):
    assert record_of(answered(user), column=column).key == key


def test_a_failed_message_keeps_its_key():
    failed: FailedRow = failed_row({"id": 1, "user": "u"}, "timeout", "late")
    assert record_of(failed, column="user").key == b"of the message"


def test_a_record_that_is_too_large_is_of_the_dead_letter_and_shortened():
    result = record_of(answered("u", "x" * 2000), max_bytes=800)
    assert (result.topic, result.key) == ("dead", b"of the message")
    assert json.loads(result.value)["llmbeam_error"]["kind"] == "not_stored"
    long = record_of(failed_row({"id": 1, "text": "x" * 5000}, "timeout", "late"), max_bytes=2500)
    assert len(long.value) < 2500
