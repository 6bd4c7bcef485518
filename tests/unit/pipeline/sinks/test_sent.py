"""Answers that were sent to a queue are recognised."""

from __future__ import annotations

from airflow_provider_llmbeam.pipeline.sinks.sent import digest_of, remember, were_sent

RECORDS = [{"id": 1, "answer": "a", "origin": "fresh"}, {"id": 2, "answer": "b", "origin": "fresh"}]


def test_answers_are_the_same_in_any_order_and_whether_they_are_fresh_or_from_the_journal(tmp_path):
    uri = str(tmp_path / "sent.json")
    assert not were_sent(uri, digest_of("t", RECORDS))
    remember(uri, digest_of("t", RECORDS))
    again = [{**record, "origin": "resumed"} for record in reversed(RECORDS)]
    assert were_sent(uri, digest_of("t", again))
    assert not were_sent(uri, digest_of("another", RECORDS))
    assert not were_sent(uri, digest_of("t", [*RECORDS, RECORDS[0]]))
    assert not were_sent(uri, digest_of("t", [{**RECORDS[0], "answer": "c"}, RECORDS[1]]))


def test_a_file_that_is_not_valid_names_no_answers(tmp_path):
    (tmp_path / "sent.json").write_text("{")
    assert not were_sent(str(tmp_path / "sent.json"), "d")
