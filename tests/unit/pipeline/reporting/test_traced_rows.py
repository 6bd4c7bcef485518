"""Rows that become spans: which ones, how many, and what of them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.pipeline.audit.record import key_hash
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.pipeline.reporting.traced_rows import MAX_CHARACTERS
from airflow_provider_llmbeam.pipeline.transforms.account import TallyRows
from airflow_provider_llmbeam.spec import Traces
from airflow_provider_llmbeam.spec.traces import MAX_TRACED_ROWS
from tests.outcomes import completion

ALL = Traces(sample_ratio=1)


def answered(number: int, origin: Any = "fresh", **changes: Any) -> AnsweredRow:
    fingerprint = hashlib.sha256(str(number).encode()).hexdigest()
    row = {"id": number, "text": f"planted text {number}"}
    return AnsweredRow(row, fingerprint, completion("planted answer"), origin, **changes)


def failed(number: int, **changes: Any) -> FailedRow:
    failure = {"kind": "timeout", "message": "planted message", "attempts": 3, "began_at": 5.0, "failed_at": 9.0}
    return FailedRow({"id": number, "text": "planted text"}, Failure(**(failure | changes)))


def tally_of(rows: Any, traces: Traces = ALL) -> Tally:
    step = TallyRows((128,), ("id",), traces=traces)
    step.start_bundle()
    for row in rows:
        step.process(row)
    (handed_on,) = step.finish_bundle()
    return handed_on.value


def traced(rows: Any, traces: Traces = ALL) -> list[Any]:
    return tally_of(rows, traces).traced.rows(traces.max_rows, lambda text: text.replace("secret", "***"))


def test_every_failed_row_is_traced_by_the_hash_of_its_key_as_the_audit_has_it():
    (found,) = traced([failed(1, http_status=504)], Traces(sample_ratio=0))
    assert (found.reason, found.error, found.http_status) == ("failed", "timeout", 504)
    assert (found.began_at, found.ended_at, found.attempts) == (5.0, 9.0, 3)
    assert found.key_hash == key_hash({"id": 1}, ("id",))


def test_a_row_without_a_key_has_a_hash_of_its_own():
    rows = [FailedRow({"llmbeam_raw": text}, Failure(kind="unreadable_row", message="")) for text in "ab"]
    assert len({found.key_hash for found in traced(rows)}) == 2
    assert [found.ended_at for found in traced(rows)] == [0, 0]


def test_one_in_a_thousand_of_the_answers_of_this_run_is_traced_whatever_the_run():
    rows = [answered(number) for number in range(20_000)]
    found = traced(rows, Traces(max_rows=100))
    assert 5 <= len(found) <= 40
    assert {each.reason for each in found} == {"sampled"}
    assert found == traced(reversed(rows), Traces(max_rows=100))


@pytest.mark.parametrize("origin", ["resumed", "cached", "duplicate"])
def test_an_answer_that_this_run_has_not_asked_for_is_not_sampled(origin):
    assert traced([answered(1, origin)]) == []
    assert [found.reason for found in traced([answered(1, "batch")])] == ["sampled"]


def test_a_flagged_row_is_traced_with_what_the_guard_found():
    rows = [answered(1, "cached", moderation_input="S1"), failed(2, kind="moderated", category="S2,S3")]
    flagged, refused = sorted(traced(rows, Traces(sample_ratio=0)), key=lambda found: -len(found.reason))
    assert (flagged.reason, flagged.labels) == ("flagged", {"moderation.input": "S1"})
    assert (refused.reason, refused.labels) == ("failed", {"moderation": "S2,S3"})


@pytest.mark.parametrize("origin", ["resumed", "cached", "duplicate"])
def test_what_an_earlier_run_has_paid_for_is_in_no_span_of_this_one(origin):
    """A tool adds the tokens of spans up, and a row of last week would stretch the trace of today."""
    paid = {"tokens": Tokens(7, 3), "cost_nano_usd": 10**9}
    rows = [answered(1, origin, moderation_input="S1"), replace(failed(2, **paid), origin=origin)]
    for found in traced(rows):
        assert (found.began_at, found.ended_at, found.attempts) == (0, 0, 0)
        assert (found.input_tokens, found.output_tokens, found.cost_usd) == (0, 0, 0)
    (own,) = traced([failed(2, **paid)])
    assert (own.ended_at, own.input_tokens, own.cost_usd) == (9.0, 7, 1.0)


def test_a_span_has_no_text_unless_it_is_asked_for():
    rows = [answered(1), failed(2)]
    assert "planted" not in str(traced(rows))
    asked = traced(rows, ALL.model_copy(update={"include_text": True}))
    assert [(found.row or "")[:6] for found in asked] == ['{"id":'] * 2
    assert {(found.answer, found.message) for found in asked} == {
        ("planted answer", None),
        (None, "planted message"),
    }
    (long,) = traced([failed(1, message="secret" * 1000)], Traces(include_text=True))
    assert long.message is not None
    assert "secret" not in long.message
    assert len(long.message) <= MAX_CHARACTERS


def test_a_job_that_wants_no_spans_has_none():
    assert traced([answered(1), answered(2, moderation_output="S1"), failed(3)], Traces(max_rows=0)) == []


@given(st.permutations(range(12)), st.integers(0, 12))
def test_which_rows_are_traced_does_not_depend_on_the_workers(order, cut):
    rows = [failed(number) for number in order]
    both = add_up([tally_of(rows[:cut]), tally_of(rows[cut:])])
    together = tally_of([failed(number) for number in range(12)])
    assert both.traced.rows(5, str) == together.traced.rows(5, str)


def test_however_many_rows_fail_five_hundred_are_kept():
    tallies = [tally_of(failed(100 * part + number) for number in range(700)) for part in range(4)]
    total = add_up(tallies)
    assert {len(tally.traced.kept["failed"]) for tally in (*tallies, total)} == {MAX_TRACED_ROWS}
    hashes = {key_hash({"id": number}, ("id",)) for number in range(1000)}
    assert max(total.traced.kept["failed"]) == sorted(hashes)[MAX_TRACED_ROWS - 1]
    assert total.failed["timeout"] == 2800
