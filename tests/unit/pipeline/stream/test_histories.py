"""The conversations of a worker: as large as a record, and no older than their time to live."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline.conversation.turns import RowTurn
from airflow_provider_llmbeam.pipeline.stream.histories import Histories, Talk, decode_state
from tests.outcomes import completion
from tests.stream_jobs import stream_job

PLACE, DAY = ("q", 0), 86_400.0
MAX_BYTES = 1000


@pytest.fixture
def histories():
    spec = stream_job(conversation={"key": "user", "ttl_days": 2})
    assert spec.conversation is not None
    opened = Histories(spec.conversation, spec.fingerprinter(), MAX_BYTES)
    yield opened
    opened.close()


def add_turn(histories: Histories, talk: Talk, name: str, text: str) -> bytes | None:
    turn = RowTurn(name, (0,), {"text": text}, text, None)
    dialogue = histories.begin(PLACE, talk, "c", turn, 101.0)
    dialogue.next_prompt()
    return histories.finish(talk, dialogue, completion("yes"))[1]


def names(state: bytes | None) -> list[str]:
    return [turn.name for turn in decode_state(state or b"")]


def test_the_oldest_turns_are_left_out_of_a_record_that_would_be_too_large(histories):
    talk = Talk()
    found = [names(add_turn(histories, talk, f"t{number}", "x" * 200)) for number in range(4)]
    assert found == [["t0"], ["t0", "t1"], ["t1", "t2"], ["t2", "t3"]]
    assert talk.state is not None
    assert len(talk.state) <= MAX_BYTES


def test_a_turn_larger_than_a_record_leaves_the_history_as_it_was(histories):
    talk = Talk()
    add_turn(histories, talk, "t0", "a")
    too_large = add_turn(histories, talk, "t1", "x" * 2 * MAX_BYTES)
    assert too_large is not None
    assert len(too_large) > MAX_BYTES
    assert names(add_turn(histories, talk, "t2", "b")) == ["t0", "t2"]


def test_conversations_older_than_their_time_to_live_are_removed(histories):
    histories.put(PLACE, [("old", b"1"), ("continued", b"1")], 0.0)
    histories.put(PLACE, [("continued", b"2")], DAY)
    histories.put(PLACE, [("new", b"1")], 2.5 * DAY)
    assert histories._execute("SELECT name FROM h ORDER BY name") == [("continued",), ("new",)]
