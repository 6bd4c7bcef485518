"""A row whose answer is repaired has the cost of what this run has paid for it, and of nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.privacy.placeholder import returned_in
from airflow_provider_llmbeam.pipeline.privacy.repair import apply_repair, repair_fingerprint, repair_text
from airflow_provider_llmbeam.pipeline.privacy.vault import VAULT, Vault
from tests.outcomes import completion

SENT = "<EMAIL_7f3a>"
ROW = {"id": 1, VAULT: Vault(sent=[SENT])}
REPAIRS = {
    "copied": completion(f"to {SENT}", cost_nano_usd=70),
    "altered": completion("to <email_7f3a>", cost_nano_usd=70),
    "failed": Failure(kind="timeout", message="none", cost_nano_usd=70, attempts=1),
}


def first(origin: str) -> AnsweredRow:
    return AnsweredRow(ROW, "f", completion("to <EMAIL_7f3b>", cost_nano_usd=500), origin)


def cost(row: AnsweredRow | FailedRow) -> int | None:
    return (row.failure if isinstance(row, FailedRow) else row.completion).cost_nano_usd


@pytest.mark.parametrize("repair", REPAIRS.values(), ids=REPAIRS.keys())
@pytest.mark.parametrize(
    ("origin", "is_counted", "paid", "counted_as"),
    [
        ("fresh", True, 570, "repaired"),
        ("fresh", False, 500, "fresh"),
        ("batch", True, 70, "repaired"),
        ("resumed", True, 70, "repaired"),
        ("cached", False, 570, "cached"),
        ("duplicate", False, 570, "duplicate"),
    ],
)
def test_what_the_run_has_paid_is_counted_once(origin, is_counted, paid, counted_as, repair):
    found = apply_repair(first(origin), repair, is_counted=is_counted)
    assert cost(found) == paid
    if isinstance(found, FailedRow):
        assert found.origin == ("fresh" if counted_as in ("fresh", "repaired") else counted_as)
        assert found.failure.kind == ("timeout" if isinstance(repair, Failure) else "invalid_output")
    else:
        assert (found.origin, found.completion.text, found.completion.repairs) == (counted_as, f"to {SENT}", 1)
    assert found.row is ROW


def test_the_request_names_the_placeholders_as_they_were_and_keeps_the_prompt():
    text = f"Write to {SENT} and <PHONE_0a1b>."
    found = returned_in("Dear EMAIL_7f3a, <PHONE_0a1b>", [SENT, "<PHONE_0a1b>"])
    assert found.originals == (SENT,)
    asked = repair_text(text, found)
    assert asked.startswith(text)
    assert SENT in asked.removeprefix(text)
    assert "PHONE" not in asked.removeprefix(text)


@given(st.text("0123456789abcdef", min_size=64, max_size=64))
def test_a_repair_has_a_fingerprint_of_its_own_that_follows_from_that_of_its_prompt(fingerprint):
    assert repair_fingerprint(fingerprint) == repair_fingerprint(fingerprint) != fingerprint
    assert len(bytes.fromhex(repair_fingerprint(fingerprint))) == 32
