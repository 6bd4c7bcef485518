"""The records that messages become."""

from __future__ import annotations

import json
import time
from dataclasses import replace

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


def test_an_answer_that_is_stored_outside_kafka_alone_counts_with_its_size_and_has_no_limit():
    topics = replace(TOPICS, answers=None)
    outputs = Outputs(OutputColumns(("id",), ("user",)), None, topics, 1000, has_stores=True)
    row = answered("u", "x" * 2000)
    result = outputs.result(Message(0, b"k", None, 0.0, row), row)  # type: ignore[arg-type]
    assert result.topic is None
    assert result.row is row
    assert len(result.value) > 2000


def test_a_message_whose_turn_no_record_takes_is_of_the_dead_letter_and_in_no_history():
    outputs = Outputs(OutputColumns(("id",), ("user",)), None, TOPICS, 1000, has_stores=False)
    for row in (answered("u"), failed_row({"id": 1}, "moderated", "unsafe")):
        message = Message(0, b"k", None, 0.0, row, conversation="c", state=b"x" * 1001)  # type: ignore[arg-type]
        result = outputs.result(message, row)
        assert (result.topic, message.state) == ("dead", None)
    message = Message(0, b"k", None, 0.0, answered("u"), conversation="c", state=b"x" * 1001)  # type: ignore[arg-type]
    reason = json.loads(outputs.result(message, answered("u")).value)["llmbeam_error"]["message"]
    assert reason == "the turn is a record of 1,001 bytes, and the topics take 1,000"
