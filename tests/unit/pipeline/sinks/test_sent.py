"""Answers that were sent to a queue are recognised."""

from __future__ import annotations

from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.pipeline.sinks.sent import digest_of, find_unsent, remember

RECORDS = [
    {"id": 1, "answer": "a", "llmbeam_origin": "fresh"},
    {"id": 2, "answer": "b", "llmbeam_origin": "fresh"},
]


def staged(tmp_path, records):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b"".join(map(encode_record, records)))
    return {0: str(path)}


def unsent(tmp_path, records, address="t"):
    uri = str(tmp_path / "sent.json")
    return [number for number, _ in find_unsent(uri, digest_of(address, records), staged(tmp_path, records))]


def send(tmp_path, records, refused=()):
    remember(str(tmp_path / "sent.json"), digest_of("t", records), staged(tmp_path, records), refused)


def test_answers_are_the_same_in_any_order_and_whether_they_are_fresh_or_from_the_journal(tmp_path):
    assert unsent(tmp_path, RECORDS) == [0, 1]
    send(tmp_path, RECORDS)
    again = [{**record, "llmbeam_origin": "resumed"} for record in reversed(RECORDS)]
    assert unsent(tmp_path, again) == []
    assert unsent(tmp_path, RECORDS, "another") == [0, 1]
    assert unsent(tmp_path, [*RECORDS, RECORDS[0]]) == [0, 1, 2]
    assert unsent(tmp_path, [{**RECORDS[0], "answer": "c"}, RECORDS[1]]) == [0, 1]


def test_what_was_refused_is_sent_by_the_next_attempt_and_nothing_else(tmp_path):
    send(tmp_path, RECORDS, refused=[1])
    assert unsent(tmp_path, [RECORDS[1], RECORDS[0]]) == [0]
    send(tmp_path, RECORDS)
    assert unsent(tmp_path, RECORDS) == []


def test_a_file_that_is_not_valid_names_no_answers(tmp_path):
    for text in ("{", "[]", '{"digest": "other", "refused": 4}'):
        (tmp_path / "sent.json").write_text(text)
        assert unsent(tmp_path, RECORDS) == [0, 1]
