"""What the journal of a partition knows, and what its next owner reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.journal.entry import encode_entry
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS
from airflow_provider_llmbeam.pipeline.stream.journal import PartitionJournal, begin_of


def answer(text: str) -> Completion:
    return Completion(
        text=text,
        model="m",
        finish_reason="stop",
        tokens=NO_TOKENS,
        attempts=1,
        latency_seconds=0.1,
        sent_at=1.0,
        answered_at=2.0,
    )


def outcome_of(journal: PartitionJournal, fingerprint: str) -> Outcome | None:
    paid = journal.paid(fingerprint)
    return None if paid is None else paid.outcome


def test_the_last_message_of_a_fingerprint_ends_its_entry_and_no_earlier_one():
    journal = PartitionJournal()
    journal.use("a")
    journal.use("a")
    journal.record("a", answer("x"), 5)
    assert journal.take_ended(["a"], 1) == {}
    assert outcome_of(journal, "a") == answer("x")
    assert [*journal.take_ended(["a"], 2)] == ["a"]
    assert journal.paid("a") is None


def test_an_aborted_transaction_gives_its_entries_back():
    journal = PartitionJournal()
    journal.use("a")
    journal.record("a", answer("x"), 5)
    before = journal.begin
    ended = journal.take_ended(["a"], 1)
    journal.give_back(["a"], ended)
    assert (outcome_of(journal, "a"), journal.begin) == (answer("x"), before)
    assert [*journal.take_ended(["a"], 1)] == ["a"]


def test_the_next_owner_reads_from_the_oldest_entry_that_is_not_ended():
    journal = PartitionJournal(end=3)
    assert journal.begin == 3
    for number, name in enumerate("ab"):
        journal.use(name)
        journal.record(name, answer(name), 5 + number)
    assert journal.begin == 5
    journal.take_ended(["a"], 1)
    assert journal.begin == 6
    journal.take_ended(["b"], 2)
    assert journal.begin == 7


def test_an_entry_that_no_message_uses_ends_once_the_messages_of_its_time_are_committed():
    journal = PartitionJournal(known_until=10)
    journal.restore(4, "orphan", encode_entry("orphan", "job", answer("x")))
    assert journal.take_ended([], 9) == {}
    assert [*journal.take_ended([], 10)] == ["orphan"]


def test_a_tombstone_ends_an_entry_and_what_cannot_be_read_is_none():
    journal = PartitionJournal()
    journal.restore(0, "a", encode_entry("a", "job", answer("x")))
    assert outcome_of(journal, "a") == answer("x")
    journal.restore(1, "a", None)
    journal.restore(2, "b", b"{")
    assert (journal.paid("a"), journal.paid("b"), journal.begin) == (None, None, 3)


@pytest.mark.parametrize("metadata", [None, "", "x", "[]", '{"journal": "x"}', '{"journal": -1}', "{}", "7"])
def test_of_metadata_that_is_not_ours_the_whole_journal_is_read(metadata):
    assert begin_of(metadata) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
def test_whatever_is_killed_when_the_next_owner_knows_every_answer_that_is_paid_and_not_committed(steps):
    """Each step is a message that is answered, or the commit of the oldest one; the owner may end after any."""
    topic: list[tuple[str, bytes | None]] = []
    journal, messages, begin, position = PartitionJournal(), list[str](), 0, 0
    for name, is_commit in steps:
        if is_commit and messages:
            used = [messages.pop(0)]
            position += 1
            ended = journal.take_ended(used, position)
            begin = journal.begin
            topic += [(each, None) for each in ended]
        else:
            journal.use(name)
            messages.append(name)
            if journal.paid(name) is None:
                topic.append((name, encode_entry(name, "job", answer(name))))
                journal.record(name, answer(name), len(topic) - 1)
        owner = PartitionJournal()
        for offset in range(begin, len(topic)):
            owner.restore(offset, *topic[offset])
        assert {each for each in "abc" if owner.paid(each)} == {*messages}
    assert begin <= len(topic)
